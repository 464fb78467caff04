"""What becomes of instructions and pictures for GR00T."""

import numpy as np
import pytest
import torch
from PIL import Image

from rlinf.models.embodiment.flow_vla.groot.prompts import groot_prompt, image_token
from rlinf.models.embodiment.flow_vla.pictures import cropped_pictures
from rlinf.models.embodiment.openvla.prompts import word_tokenizer
from tests.unit_tests.models.flow_vla.policies import make


def test_how_a_prompt_is_written():
    before = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    after = "<|im_end|>\n<|im_start|>assistant\n"
    one = "<image 1><img><IMG_CONTEXT><IMG_CONTEXT></img>"
    two = one.replace("1", "2")
    assert groot_prompt("Open it.", images=2, places=2) == f"{before}{one}{two}Open it.{after}"
    assert groot_prompt("Open it.", images=0, places=2) == f"{before}Open it.{after}"
    listed = groot_prompt("Open it.", images=0, places=2, listed=True)
    assert listed == f"{before}['Open it.']{after}"


def test_tokens_are_padded_on_the_left_and_have_places_for_each_picture():
    policy = make("gr00t", max_prompt_length=30)
    ids = policy.prompts(["open the faucet", "close it"])
    places = policy.network.sizes.image_places
    assert ids.shape == (2, 30 + 2 * places) and places == 4
    assert (ids == policy.network.sizes.image_token).sum(1).tolist() == [2 * places] * 2
    read = policy.prompts.tokenizer.convert_ids_to_tokens(ids[1])
    image = "<img> {} </img>".format(" ".join(["<IMG_CONTEXT>"] * places))
    said = (
        "<|im_start|> system you are a helpful assistant . <|im_end|> <|im_start|> user "
        f"< image 1 > {image} < image 2 > {image} close it <|im_end|> <|im_start|> assistant"
    ).split()
    assert read == ["<pad>"] * (len(read) - len(said)) + said
    assert (ids[0] == policy.prompts.pad).sum() == len(read) - len(said) - 1


def test_a_prompt_that_is_too_long_is_shown_without_its_middle():
    policy = make("gr00t", max_prompt_length=8)
    with pytest.raises(ValueError, match="raise model.max_prompt_length") as error:
        policy.prompts(["open it"])
    assert "open it<|im_end|>" in str(error.value) and len(str(error.value)) < 400


def test_a_tokenizer_without_places_for_pictures_is_refused():
    with pytest.raises(ValueError, match=r"no token <IMG_CONTEXT>: name a folder with that of"):
        image_token(word_tokenizer(["open"]))


@pytest.mark.parametrize("shape", [(40, 60), (300, 240)])
def test_the_middle_of_a_picture_is_scaled_as_pillow_does(shape):
    image = np.random.RandomState(0).randint(0, 256, (*shape, 3)).astype(np.uint8)
    height, width = (int(size * 0.95) for size in shape)
    top, left = (round((a - b) / 2) for a, b in zip(shape, (height, width), strict=True))
    middle = Image.fromarray(image).crop((left, top, left + width, top + height))
    expected = np.asarray(middle.resize((32, 32), Image.Resampling.BILINEAR)).astype(float)
    found = cropped_pictures(torch.from_numpy(image)[None], 32)[0].permute(1, 2, 0)
    levels = (found + 1) * 127.5
    # Pillow rounds after each direction, and to the nearest.
    assert np.abs(levels.numpy() - expected).max() <= 2
    torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
    assert cropped_pictures(torch.full((1, 9, 9, 3), 255, dtype=torch.uint8), 4).unique() == 1
