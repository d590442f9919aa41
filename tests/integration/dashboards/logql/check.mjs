// Parses LogQL with Grafana's own grammar. Reads a JSON list of queries from standard input; writes
// for each what is wrong with it and the names it uses: {errors: [text], names: [text]}.
//
//     node check.mjs FOLDER_WITH_NODE_MODULES < queries.json
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.argv[2]}/`);
const { parser } = require("@grafana/lezer-logql");

function parsed(query) {
  const errors = [];
  const names = [];
  parser.parse(query).iterate({
    enter: (node) => {
      const text = query.slice(node.from, node.to);
      if (node.type.isError) errors.push(`${text || "something missing"} at ${node.from}`);
      if (node.type.name === "Identifier") names.push(text);
    },
  });
  return { errors, names };
}

const queries = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(queries.map(parsed)));
