"""What all tasks share.

- Folders: `run` (one run), `compressed_folder`, `saved_models`.
- A training: `training` (session, loop, log), `checkpoints`, `progress`, `counter`.
- Its end: `finishing` (model and export), `cards`.
- Results: `trained` (a finished run that reads texts), `predictions`, `tables`, `plots`.
"""
