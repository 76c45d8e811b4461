"""Small chat templates that treat tools as those of well-known models do, and a tokenizer for them."""

from __future__ import annotations

from typing import Any

HERMES = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nCall them within <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or message.role == 'system' and not loop.first %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}{% generation %}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- for tool_call in message.tool_calls %}
{%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
{%- set tool_call = tool_call.function if tool_call.function else tool_call %}
{{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}{% endgeneration %}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

LLAMA = """{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if tools is not none %}{{- '<|start_header_id|>system<|end_header_id|>\\n\\nCall {"name": ..., "parameters": ...}\\n' }}
{%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}{{- '<|eot_id|>' }}{%- endif %}
{%- for message in messages %}
{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in message %}
{%- if not message.tool_calls | length == 1 %}{{- raise_exception('only single tool-calls at once!') }}{%- endif %}
{%- set tool_call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{{- '{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
{%- if message.content is mapping or message.content is iterable and message.content is not string %}
{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """{{- bos_token }}
{%- set user_messages = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}
{%- if message['role'] == 'user' %}
{%- if tools is not none and (message == user_messages[-1]) %}
{{- '[AVAILABLE_TOOLS] [' }}
{%- for tool in tools %}
{%- set tool = tool.function %}
{{- '{"type": "function", "function": {' }}
{%- for key, val in tool.items() if key != 'return' %}
{%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- '}}' }}{{- ', ' if not loop.last else ']' }}
{%- endfor %}{{- '[/AVAILABLE_TOOLS]' }}
{%- endif %}{{- '[INST] ' + message['content'] + '[/INST]' }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}
{{- '[TOOL_CALLS] [' }}
{%- for tool_call in message.tool_calls %}
{%- set out = tool_call.function | tojson %}{{- out[:-1] }}
{%- if not tool_call.id is defined or tool_call.id | length != 9 %}{{- raise_exception('ids have 9 letters!') }}{%- endif %}
{{- ', "id": "' + tool_call.id + '"}' }}{{- ', ' if not loop.last else ']' + eos_token }}
{%- endfor %}
{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content'] | trim + eos_token }}
{%- elif message['role'] == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{- raise_exception('Only user and assistant roles are supported') }}
{%- endif %}
{%- endfor %}"""

MISTRAL_ARGS = """{{- bos_token }}
{%- if tools is defined and tools is not none and tools | length > 0 %}
{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{{- '[INST]' + message['content'] + '[/INST]' }}
{%- elif message['role'] == 'system' %}{{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
{%- elif message['role'] == 'assistant' %}
{%- if message['content'] is string %}{{- message['content'] }}{%- endif %}
{%- for tool in message.tool_calls | default([], true) %}
{%- set arguments = tool['function']['arguments'] %}
{%- if arguments is not string %}{%- set arguments = arguments | tojson %}{%- elif arguments == '' %}{%- set arguments = '{}' %}{%- endif %}
{{- '[TOOL_CALLS]' + tool['function']['name'] + '[ARGS]' + arguments }}
{%- endfor %}{{- eos_token }}
{%- elif message['role'] == 'tool' %}{{- '[TOOL_RESULTS]' + message['content'] | string + '[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""

# Arguments are text, and a message of calls has no content.
DEEPSEEK_FENCED = """{{- bos_token }}
{%- for message in messages if message.role == 'system' %}{{- message.content }}{%- endfor %}
{%- if tools %}{{- '\\n## Tools\\n' }}{%- for tool in tools %}{{- tool.function | tojson }}{{- '\\n' }}{%- endfor %}{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{{- '<｜User｜>' + message['content'] }}
{%- elif message['role'] == 'assistant' and message['content'] is none %}{{- '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
{%- for tool in message['tool_calls'] %}
{%- if not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}
{%- endfor %}{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- elif message['role'] == 'assistant' %}{{- '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}
{%- elif message['role'] == 'tool' %}{{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜>' }}{%- endif %}"""

DEEPSEEK = """{{- bos_token }}
{%- if tools %}{{- '## Tools\\n' + tools | tojson }}{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'system' %}{{- message['content'] }}
{%- elif message['role'] == 'user' %}{{- '<｜User｜>' + message['content'] }}
{%- elif message['role'] == 'assistant' %}{{- '<｜Assistant｜></think>' + (message['content'] or '') }}
{%- if message['tool_calls'] %}{{- '<｜tool▁calls▁begin｜>' }}
{%- for tool in message['tool_calls'] %}{{- '<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] + '<｜tool▁call▁end｜>' }}{%- endfor %}
{{- '<｜tool▁calls▁end｜>' }}{%- endif %}{{- '<｜end▁of▁sentence｜>' }}
{%- elif message['role'] == 'tool' %}{{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜></think>' }}{%- endif %}"""

KIMI = """{%- if tools %}{{- '<|im_system|>tool_declare<|im_middle|>' + tools | tojson(separators=(',', ':')) + '<|im_end|>' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_' + ('user' if message.role == 'user' else 'assistant' if message.role == 'assistant' else 'system') + '|>' + (message.name or message.role) + '<|im_middle|>' }}
{%- if message.role == 'tool' %}{{- '## Return of ' + message.tool_call_id + '\\n' }}{%- endif %}
{{- message.content or '' }}
{%- if message.tool_calls %}{{- '<|tool_calls_section_begin|>' }}
{%- for call in message.tool_calls %}
{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}{{- '<|tool_call_end|>' }}
{%- endfor %}{{- '<|tool_calls_section_end|>' }}{%- endif %}{{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_assistant|>assistant<|im_middle|>' }}{%- endif %}"""

GRANITE = """{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' + tools | tojson(indent=4) + '<|end_of_text|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|start_of_role|>' + message.role + '<|end_of_role|>' }}{{- message.content or '' }}
{%- if message.tool_calls %}{{- '<|tool_call|>[' }}
{%- for call in message.tool_calls %}{{- call.function | tojson }}{{- ', ' if not loop.last }}{%- endfor %}{{- ']' }}{%- endif %}
{{- '<|end_of_text|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}"""

COMMAND_R = """{{- bos_token }}
{%- if tools %}{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' }}{%- for tool in tools %}{{- tool.function | tojson }}{%- endfor %}{{- '<|END_OF_TURN_TOKEN|>' }}{%- endif %}
{%- for message in messages %}
{{- '<|START_OF_TURN_TOKEN|><|' + {'user': 'USER', 'assistant': 'CHATBOT'}.get(message.role, 'SYSTEM') + '_TOKEN|>' }}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- if message.tool_calls %}{{- '<|START_ACTION|>[\\n' }}
{%- for call in message.tool_calls %}
{{- '    {"tool_call_id": "' + loop.index0 | string + '", "tool_name": "' + call.function.name + '", "parameters": ' + call.function.arguments | tojson + '}' }}{{- ',' if not loop.last }}{{- '\\n' }}
{%- endfor %}{{- ']<|END_ACTION|>' }}{%- endif %}{{- '<|END_OF_TURN_TOKEN|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif %}"""

QWEN_CODER = """{%- if tools %}{{- '<|im_start|>system\\n<tools>' }}
{%- for tool in tools %}
{{- '\\n<function>\\n<name>' + tool.function.name + '</name>' }}
{%- if tool.function.description is defined %}{{- '\\n<description>' + (tool.function.description | trim) + '</description>' }}{%- endif %}
{%- for name, fields in tool.function.parameters.properties | items %}
{{- '\\n<parameter>\\n<name>' + name + '</name>\\n<type>' + fields.type | string + '</type>\\n</parameter>' }}
{%- endfor %}{{- '\\n</function>' }}
{%- endfor %}{{- '\\n</tools>\\n<tool_call>\\n<function=NAME>\\n<parameter=NAME>\\n...<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\\n' }}
{{- (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}{{- '</function>\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

GLM = """[gMASK]<sop>
{%- if tools %}{{- '<|system|>\\n<tools>\\n' }}{%- for tool in tools %}{{- tool | tojson(ensure_ascii=False) + '\\n' }}{%- endfor %}
{{- '</tools>\\n<tool_call>NAME\\n<arg_key>...' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{- '<|observation|>\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- else %}
{{- '<|' + m.role + '|>' }}{{- ('\\n' + m.content) if m.content }}
{%- for tc in m.tool_calls or [] %}
{{- '\\n<tool_call>' + tc.function.name + '\\n' }}
{%- for k, v in tc.function.arguments.items() %}
{{- '<arg_key>' + k + '</arg_key>\\n<arg_value>' }}{{- v | tojson(ensure_ascii=False) if v is not string else v }}{{- '</arg_value>\\n' }}
{%- endfor %}{{- '</tool_call>' }}
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""

FUNCTIONARY = """{%- if tools %}{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- for tool in tools %}{{- "Use the function '" + tool.function.name + "' to '" + tool.function.description + "'\\n" + tool.function | tojson + '\\n' }}{%- endfor %}
{{- '<function=NAME>{...}</function><|eot_id|>' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{%- if message.content is not none %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<function=' + call.function.name + '>' }}{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}{{- '</function>' }}
{%- endfor %}{{- '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

# It knows of no tools, as SmolLM2's own.
CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

NO_SYSTEM = """{%- for message in messages %}
{%- if message.role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{{- '<start_of_turn>' + message.role + '\\n' + message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""

# The format that each is to be recognised as.
TEMPLATES = {
    "hermes": HERMES,
    "llama3": LLAMA,
    "mistral": MISTRAL,
    "mistral-args": MISTRAL_ARGS,
    "deepseek-fenced": DEEPSEEK_FENCED,
    "deepseek": DEEPSEEK,
    "kimi": KIMI,
    "granite": GRANITE,
    "command-r": COMMAND_R,
    "qwen-coder": QWEN_CODER,
    "glm": GLM,
    "functionary": FUNCTIONARY,
}
CONTROLS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "[ARGS]")


def tokenizer_of(template: Any) -> Any:
    """Of transformers: a token a byte, and a few control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={piece: id_ for id_, piece in enumerate(letters)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in CONTROLS])
    made.add_tokens([AddedToken("<tool_call>"), AddedToken("</tool_call>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer
