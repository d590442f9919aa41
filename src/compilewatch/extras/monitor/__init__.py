"""The local web page over `outputs/`, read-only.

`view` reads what the page shows; `page` draws it, and is the script that Streamlit runs, in a
separate environment (`environments.creation`).
"""
