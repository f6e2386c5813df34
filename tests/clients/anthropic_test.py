"""The official anthropic client against the server."""

import unittest

import anthropic

from served import KEY, Server

TOOLS = [{"name": "get_weather", "description": "The weather of a city",
          "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris", "London"]}},
                           "required": ["city"], "additionalProperties": False}}]


class AnthropicTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(env={"FATHOM_API_KEY": KEY})
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key=KEY, max_retries=0)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, **fields):
        fields.setdefault("max_tokens", 16)
        fields.setdefault("messages", [{"role": "user", "content": "Tell me a story"}])
        fields.setdefault("extra_body", {}).setdefault("temperature", 0)
        return self.client.messages.create(model="tiny-v3-nvfp4", **fields)

    def test_message(self):
        reply = self.ask(system="You tell stories.")
        self.assertEqual(reply.role, "assistant")
        self.assertEqual(reply.content[0].type, "text")
        self.assertIn(reply.stop_reason, ("end_turn", "max_tokens"))
        self.assertGreater(reply.usage.input_tokens, 0)
        self.assertGreater(reply.usage.output_tokens, 0)

    def test_stream_equals_whole(self):
        whole = self.ask().content[0].text
        with self.client.messages.stream(
                model="tiny-v3-nvfp4", max_tokens=16, extra_body={"temperature": 0},
                messages=[{"role": "user", "content": "Tell me a story"}]) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole)
        self.assertEqual(final.content[0].text, whole)

    def test_stop_sequence(self):
        whole = self.ask(max_tokens=24).content[0].text
        stop = whole[6:9]
        reply = self.ask(max_tokens=24, stop_sequences=[stop])
        self.assertEqual(reply.content[0].text, whole[:whole.index(stop)])
        self.assertEqual((reply.stop_reason, reply.stop_sequence), ("stop_sequence", stop))

    def test_tool(self):
        reply = self.ask(tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=600,
                         messages=[{"role": "user", "content": "What is the weather in Paris?"}])
        self.assertEqual(reply.stop_reason, "tool_use")
        call = next(block for block in reply.content if block.type == "tool_use")
        self.assertEqual(call.name, "get_weather")
        self.assertIn(call.input["city"], ("Paris", "London"))
        again = self.ask(tools=TOOLS, max_tokens=8, messages=[
            {"role": "user", "content": "What is the weather in Paris?"},
            {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}])
        self.assertEqual(again.type, "message")

    def test_count_tokens(self):
        messages = [{"role": "user", "content": "Tell me a story"}]
        counted = self.client.messages.count_tokens(model="tiny-v3-nvfp4", messages=messages)
        usage = self.ask(messages=messages).usage
        self.assertEqual(counted.input_tokens,
                         usage.input_tokens + (usage.cache_read_input_tokens or 0))

    def test_errors(self):
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.server.url, api_key="wrong",
                                max_retries=0).messages.create(
                model="tiny-v3-nvfp4", max_tokens=1, messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask(extra_body={"top_p": 7})
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("top_p", caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(model="claude", max_tokens=1,
                                        messages=[{"role": "user", "content": "x"}])


if __name__ == "__main__":
    unittest.main()
