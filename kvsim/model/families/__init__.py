"""Model families: for each `model_type`, the function that lays its layers out.

To add one: a function from fields to layers in the module of its kind, and its line here.
"""

from collections.abc import Callable

from kvsim.model.config_fields import ConfigFields
from kvsim.model.families import cross, full, latent, recurrent, windowed
from kvsim.model.geometry import LayerKV

Family = Callable[[ConfigFields], list[LayerKV]]

_TYPES: dict[Family, str] = {
    full.full_attention: """
        apertus arcee aria_text baichuan bloom codegen cohere deepseek ernie4_5 ernie4_5_moe exaone gemma
        glm glm4 glm4_moe glm4v_text gpt2 gpt_neox gptj granite granitemoe grok-1 helium internlm internlm2
        internlm3 llama minicpm minicpmv nemotron olmo olmo2 olmoe opt orion persimmon phi phi-msft plamo
        qwen smollm3 solar stablelm step3_text xverse yi""",
    full.multi_query: "gpt_bigcode",
    full.falcon: "falcon RefinedWeb RefinedWebModel",
    full.chatglm: "chatglm",
    full.attn_config: "dbrx mpt",
    full.cross_layer_attention: "hunyuan hunyuan_v1_dense hunyuan_v1_moe",
    full.openelm: "openelm",
    full.nemotron_nas: "nemotron-nas deci",
    windowed.all_sliding: "ministral ministral3 mistral mixtral phi3 phi3_v phimoe starcoder2",
    windowed.qwen: """
        mimo qwen2 qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3
        qwen3_moe qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text""",
    windowed.even_layers_slide: "gemma2 gpt_oss",
    windowed.gemma3: "gemma3_text",
    windowed.gemma4: "gemma3n_text gemma4_text",
    windowed.cohere2: "cohere2",
    windowed.olmo3: "olmo3",
    windowed.exaone4: "exaone4",
    windowed.step: "step3p5 step3p7",
    windowed.llama4: "llama4_text",
    windowed.gpt_neo: "gpt_neo",
    windowed.mimo_v2: "mimo_v2 mimo_v2_flash",
    latent.latent: "deepseek_v2 deepseek_v3 glm4_moe_lite kimi_k2 minicpm3",
    latent.latent_pairs: "longcat_flash",
    latent.sparse_latent: "deepseek_v32 glm_moe_dsa",
    latent.sparse_full: "minimax_m3",
    latent.compressed: "deepseek_v4",
    recurrent.jamba: "jamba",
    recurrent.bamba: "bamba",
    recurrent.granite_hybrid: "granitemoehybrid",
    recurrent.nemotron_h: "nemotron_h",
    recurrent.falcon_h1: "falcon_h1",
    recurrent.qwen_next: "qwen3_5_moe_text qwen3_5_text qwen3_next",
    recurrent.kimi_linear: "kimi_k3 kimi_linear",
    recurrent.minimax: "minimax minimax_m1 minimax_m2 minimax_text_01",
    recurrent.lfm2: "lfm2 lfm2_moe",
    recurrent.zamba: "zamba zamba2",
    recurrent.mamba: "falcon_mamba mamba mamba2",
    recurrent.rwkv: "rwkv5 rwkv6",
    cross.mllama: "mllama_text_model",
    cross.encoder_decoder: "bart m2m_100 mbart mt5 pegasus t5 whisper",
}

FAMILIES: dict[str, Family] = {
    model_type: family for family, model_types in _TYPES.items() for model_type in model_types.split()
}
"""The family of every `model_type` that kvsim knows."""
