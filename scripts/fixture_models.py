# SPDX-License-Identifier: Apache-2.0
"""The table of tiny models behind data/fixtures: one entry per architecture and option.

Each entry: transformers class names, configuration, tokenizer kind, and `without`, the list of
(label, changed configuration[, least effect]) used to prove that every option matters; `_weights=(part of a
name, value)` in a changed configuration sets those weights to a constant instead.
Shapes are chosen so that nothing coincides by chance: hidden size, feed-forward size, head counts and
head size all differ, and norm epsilons are large enough to be felt.
"""

SPM_VOCAB, BPE_VOCAB = 296, 280
N_TOKENS = 64  # beyond every sliding window (16) and every original context (32) below

MIN_EFFECT = 0.02  # least change of a logit when an option is switched off: 20 times the tolerance of 1e-3
GELU_EFFECT = 5e-4  # the two forms of GELU differ by less than 5e-4 themselves

_llama = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
              num_key_value_heads=2, head_dim=8, max_position_embeddings=128, rms_norm_eps=0.02,
              rope_theta=10000.0, tie_word_embeddings=False)
# Rotary variants: head size 32 gives 16 frequencies, enough for every part of a ramp.
_rope = dict(_llama, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
             tie_word_embeddings=True)
_plain_rope = dict(rope_scaling=None)
_eps = dict(rms_norm_eps=1e-6)

_gemma = dict(hidden_size=40, intermediate_size=56, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
              max_position_embeddings=128, rms_norm_eps=0.02, sliding_window=16, rope_theta=1000000.0,
              rope_local_base_freq=10000.0, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True)

_neox = dict(hidden_size=48, intermediate_size=112, num_hidden_layers=2, num_attention_heads=3,
             max_position_embeddings=128, layer_norm_eps=0.02, rotary_emb_base=10000, hidden_act="gelu",
             tie_word_embeddings=False)

MODELS = {
    "llama": dict(hf="Llama", config=_llama, without=[
        ("epsilon", _eps), ("rope base", dict(rope_theta=500000.0))]),
    "llama_mha": dict(hf="Llama", config=dict(_llama, num_attention_heads=3, num_key_value_heads=3, head_dim=16,
                                              rope_theta=50000.0, tie_word_embeddings=True), without=[
        ("rope base", dict(rope_theta=10000.0))]),
    "llama_linear": dict(hf="Llama", config=dict(_rope, rope_scaling=dict(rope_type="linear", factor=4.0)),
                         without=[("rope scaling", _plain_rope)]),
    "llama_yarn": dict(hf="Llama", config=dict(_rope, rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32)), without=[
        ("rope scaling", _plain_rope),
        ("original context", dict(rope_scaling=dict(rope_type="yarn", factor=4.0,
                                                    original_max_position_embeddings=128))),
        ("attention factor", dict(rope_scaling=dict(rope_type="yarn", factor=4.0, attention_factor=1.0,
                                                    original_max_position_embeddings=32)))]),
    "llama3_rope": dict(hf="Llama", config=dict(_rope, rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32)), without=[("rope scaling", _plain_rope)]),
    "qwen2": dict(hf="Qwen2", config=dict({k: v for k, v in _llama.items() if k != "head_dim"},
                                          rope_theta=1000000.0), without=[
        ("epsilon", _eps), ("query bias", dict(_weights=("q_proj.bias", 0.0))),
        ("key bias", dict(_weights=("k_proj.bias", 0.0))), ("value bias", dict(_weights=("v_proj.bias", 0.0)))]),
    "qwen2_tied": dict(hf="Qwen2", config=dict({k: v for k, v in _llama.items() if k != "head_dim"},
                                               num_attention_heads=4, num_key_value_heads=1,
                                               tie_word_embeddings=True),
                       without=[("biases", dict(_weights=("_proj.bias", 0.0)))]),
    "qwen3": dict(hf="Qwen3", config=dict(_llama, num_attention_heads=4, head_dim=16, rope_theta=1000000.0), without=[
        ("epsilon", _eps), ("query norm gain", dict(_weights=("q_norm.weight", 1.0))),
        ("key norm gain", dict(_weights=("k_norm.weight", 1.0)))]),
    "gemma3": dict(hf="Gemma3", config=dict(_gemma, num_hidden_layers=7, query_pre_attn_scalar=16), without=[
        ("query norm gain", dict(_weights=("q_norm.weight", 0.0))),
        ("norm after attention", dict(_weights=("post_attention_layernorm.weight", 0.0))),
        ("norm after feed-forward", dict(_weights=("post_feedforward_layernorm.weight", 0.0))),
        ("sliding window", dict(sliding_window=4096)),
        ("local rope base", dict(rope_local_base_freq=1000000.0)),
        ("global rope base", dict(rope_theta=10000.0)),
        ("layer pattern", dict(layer_types=["sliding_attention"] * 7))]),
    "gpt2": dict(hf="GPT2", tokenizer="bpe", config=dict(
        n_embd=48, n_layer=2, n_head=3, n_positions=96, layer_norm_epsilon=0.02, tie_word_embeddings=True), without=[
        ("epsilon", dict(layer_norm_epsilon=1e-6)), ("tanh GELU", dict(activation_function="gelu"), GELU_EFFECT),
        ("scale of scores", dict(scale_attn_weights=False))]),
    "gptneox": dict(hf="GPTNeoX", tokenizer="bpe", config=dict(
        _neox, use_parallel_residual=True, rotary_pct=0.25), without=[
        ("parallel residual", dict(use_parallel_residual=False)), ("partial rotary", dict(rotary_pct=1.0)),
        ("exact GELU", dict(hidden_act="gelu_new"), GELU_EFFECT), ("epsilon", dict(layer_norm_eps=1e-6))]),
    "gptneox_sequential": dict(hf="GPTNeoX", tokenizer="bpe", config=dict(
        _neox, use_parallel_residual=False, rotary_pct=1.0), without=[
        ("sequential residual", dict(use_parallel_residual=True)), ("full rotary", dict(rotary_pct=0.25))]),
}
