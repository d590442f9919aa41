#!/usr/bin/env bash
# Creates the instance that `compilewatch trainium` starts and stops, once, with the AWS CLI (CloudShell has it):
#
#   scripts/trainium_create.sh [--sdk native|xla] [--type TYPE] [--disk-gib N] [--tag NAME=VALUE] [--dry-run]
#        [-- OPTIONS of `aws ec2 run-instances`, such as --key-name, --subnet-id, --security-group-ids]
#
#   --sdk NAME        native: TorchNeuron, a trn2.3xlarge with AWS's image for it (default); xla: PyTorch/XLA, a
#                     trn1.2xlarge with the Neuron base image
#   --type TYPE       another type of instance that has this SDK
#   --disk-gib N      the root disk (512, the least that AWS names for these instances)
#   --tag NAME=VALUE  the setting trainium.tag (compilewatch=trainium); no other instance may have it
#   --dry-run         say which image would be used, and create nothing
#
# The instance runs, and costs, from then on; it stops, and does not terminate, when it shuts itself down.
# NOT YET RUN ON AWS. Images are found by their names, as AWS's page on them does it (Neuron SDK 2.32,
# deploy/environments/dlami). That of TorchNeuron is the one that setup/pytorch/update-dlami of SDK 2.33.0
# names; what follows in its complete name has not been seen.
set -euo pipefail

sdk=native type='' disk=512 tag=compilewatch=trainium dry=''

die() {
  echo "trainium_create.sh: $*" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case $1 in
  --dry-run) dry=yes ;;
  --sdk | --type | --disk-gib | --tag)
    [ $# -ge 2 ] || die "$1 needs a value"
    case $1 in --sdk) sdk=$2 ;; --type) type=$2 ;; --disk-gib) disk=$2 ;; --tag) tag=$2 ;; esac
    shift
    ;;
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
  --) shift && break ;;
  *) die "unknown option $1; see --help, and put options of run-instances after --" ;;
  esac
  shift
done
case $sdk in
native) usual=trn2.3xlarge name='Deep Learning AMI Neuron torch-neuronx 2.14.0*Ubuntu 24.04*' ;;
xla) usual=trn1.2xlarge name='Deep Learning Base Neuron AMI*Ubuntu 24.04*' ;;
*) die "--sdk: $sdk is neither native (TorchNeuron) nor xla" ;;
esac
type=${type:-$usual}
[[ $disk =~ ^[1-9][0-9]*$ ]] || die "--disk-gib: $disk is not a number of GiB"
[[ $tag =~ ^[^=,]+=[^=,]+$ ]] || die "--tag: $tag is not of the form NAME=VALUE"
# Version 1 of the CLI reads the second alone.
if [ -n "${AWS_REGION:-}" ]; then export AWS_DEFAULT_REGION=$AWS_REGION; fi
command -v aws >/dev/null || die "the AWS CLI is not installed: run this in CloudShell, or install it"

tagged=$(aws ec2 describe-instances --output text --query 'Reservations[].Instances[].InstanceId' --filters \
  "Name=tag:${tag%%=*},Values=${tag#*=}" Name=instance-state-name,Values=pending,running,stopping,stopped)
[ -z "$tagged" ] || die "$tagged has the tag $tag already: compilewatch trainium up starts it"
image=$(aws ec2 describe-images --owners amazon --filters "Name=name,Values=$name" --output text \
  --query 'sort_by(Images, &CreationDate)[-1].[ImageId, RootDeviceName, Name]')
[ "${image%%[[:space:]]*}" != None ] ||
  die "AWS offers no image '$name' in this region: set AWS_REGION to one that has Trainium"
IFS=$'\t' read -r id root name <<<"$image"
echo "$type with $disk GiB and $id, $name"
if [ -n "$dry" ]; then exit 0; fi
made=$(aws ec2 run-instances --image-id "$id" --instance-type "$type" --count 1 \
  --block-device-mappings "DeviceName=$root,Ebs={VolumeSize=$disk,VolumeType=gp3}" \
  --instance-initiated-shutdown-behavior stop \
  --tag-specifications "ResourceType=instance,Tags=[{Key=${tag%%=*},Value=${tag#*=}}]" \
  --output text --query 'Instances[0].InstanceId' "$@")
cat <<EOF
$made starts, and costs from now on. On it, from a checkout of compilewatch:
  sudo scripts/trainium_agent.sh --sdk $sdk --key 'ssh-ed25519 AAAA... jenkins'
Stop it with: compilewatch trainium down --force
EOF
