"""The files of a logged model that its loader reads; `driver.recording.model_folder` writes them."""

ARCHITECTURE, WEIGHTS = "architecture.json", "model.safetensors"
