"""Where the files of an exported version are that TensorFlow does not know."""

MODEL_CARD = "assets.extra/model_card.json"
ENGINES = "assets.extra/engines"
SIGNATURES = "assets.extra/signatures.json"
