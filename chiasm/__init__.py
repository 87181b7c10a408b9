"""chiasm serves vision-language models with an encoder that runs data-parallel, frame by frame."""
