"""What vLLM 0.32 takes: the names of the fields of its request models, by our endpoints."""

from __future__ import annotations


def _names(*lines: str) -> list[str]:
    return " ".join(lines).split()


_SAMPLING = (
    "allowed_token_ids bad_words frequency_penalty ignore_eos include_stop_str_in_output length_penalty logit_bias "
    "logprob_token_ids min_p min_tokens n presence_penalty prompt_logprobs repetition_detection repetition_penalty "
    "seed skip_special_tokens spaces_between_special_tokens stop stop_token_ids temperature thinking_token_budget "
    "top_k top_p truncate_prompt_tokens truncation_side use_beam_search watermarking"
)
_TRANSPORT = (
    "cache_salt ec_transfer_params kv_transfer_params mm_payload model priority request_id return_mm_kwargs "
    "return_token_ids return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start session_id stream "
    "stream_interval stream_options user vllm_xargs"
)
FIELDS: dict[str, list[str]] = {
    "/v1/chat/completions": _names(
        _SAMPLING,
        _TRANSPORT,
        "add_generation_prompt add_special_tokens chat_template chat_template_kwargs continue_final_message",
        "documents echo include_reasoning logprobs max_completion_tokens max_tokens media_io_kwargs messages",
        "mm_processor_kwargs parallel_tool_calls reasoning_effort response_format return_prompt_text",
        "structured_outputs tool_choice tools top_logprobs",
    ),
    "/v1/completions": _names(
        _SAMPLING,
        _TRANSPORT,
        "add_special_tokens echo logprobs max_tokens prompt prompt_embeds response_format structured_outputs suffix",
    ),
    "/v1/responses": _names(
        "background cache_salt chat_template_kwargs ec_transfer_params enable_response_messages frequency_penalty",
        "ignore_eos include include_reasoning include_stop_str_in_output input instructions kv_transfer_params",
        "logit_bias max_output_tokens max_tool_calls media_io_kwargs metadata min_p mm_payload mm_processor_kwargs",
        "model parallel_tool_calls presence_penalty previous_input_messages previous_response_id priority prompt",
        "prompt_cache_key reasoning repetition_penalty request_id return_mm_kwargs seed service_tier session_id",
        "skip_special_tokens stop stop_token_ids store stream structured_outputs temperature text tool_choice tools",
        "top_k top_logprobs top_p truncation user vllm_xargs watermarking",
    ),
    "/tokenize": _names(
        "add_generation_prompt add_special_tokens chat_template chat_template_kwargs continue_final_message",
        "media_io_kwargs messages mm_processor_kwargs model prompt return_token_strs tools",
    ),
    "/detokenize": ["model", "tokens"],
}
