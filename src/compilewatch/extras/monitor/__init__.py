"""The local web page over `outputs/`, read-only.

`view` is what the page shows, without Streamlit; `page` draws it, and is the script that Streamlit
runs, in a separate environment (`environments.creation`).
"""
