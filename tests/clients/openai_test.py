"""The official openai client against the server."""

import json
import unittest

import openai
from openai import OpenAI

from served import KEY, Server

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "London"]}}, "required": ["city"],
                   "additionalProperties": False}}}]


class OpenAITest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(env={"FATHOM_API_KEY": KEY})
        cls.client = OpenAI(base_url=cls.server.url + "/v1", api_key=KEY, max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, text="Tell me a story", **fields):
        fields.setdefault("max_tokens", 24)
        fields.setdefault("temperature", 0)
        return self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": text}], **fields)

    def test_models(self):
        self.assertEqual(self.model, "tiny-v3-nvfp4")
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("another")

    def test_chat(self):
        reply = self.ask()
        choice = reply.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        usage = reply.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertLessEqual(usage.completion_tokens, 24)

    def test_stream_equals_whole(self):
        whole = self.ask().choices[0].message.content
        stream = self.ask(stream=True, stream_options={"include_usage": True})
        text, finish, usage = "", None, None
        for chunk in stream:
            if chunk.usage:
                usage = chunk.usage
                self.assertEqual(chunk.choices, [])
                continue
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        self.assertEqual(text, whole)
        self.assertIn(finish, ("stop", "length"))
        self.assertGreater(usage.completion_tokens, 0)

    def test_stream_helper(self):
        with self.client.chat.completions.stream(
                model=self.model, messages=[{"role": "user", "content": "Hello"}], max_tokens=200,
                temperature=0, stop=["."]) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertIn("content.delta", kinds)
        self.assertTrue(final.choices[0].message.content)

    def test_choices_and_seeds(self):
        replies = [self.ask(n=3, temperature=1, seed=5) for _ in range(2)]
        texts = [[c.message.content for c in r.choices] for r in replies]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual([c.index for c in replies[0].choices], [0, 1, 2])
        self.assertGreater(len(set(texts[0])), 1)

    def test_logprobs(self):
        reply = self.ask(logprobs=True, top_logprobs=3, max_tokens=6)
        content = reply.choices[0].logprobs.content
        self.assertEqual(len(content), reply.usage.completion_tokens)
        for token in content:
            self.assertLessEqual(len(token.top_logprobs), 3)
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=5)  # greedy
            self.assertEqual(bytes(token.bytes).decode("utf-8", "replace"), token.token)

    def test_json_schema(self):
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                                   "age": {"enum": [7, 42]}},
                  "required": ["name", "age"], "additionalProperties": False}
        reply = self.ask("A person as JSON", max_tokens=120, response_format={
            "type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}})
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        person = json.loads(reply.choices[0].message.content)
        self.assertEqual(set(person), {"name", "age"})
        self.assertLessEqual(len(person["name"]), 12)
        self.assertIn(person["age"], (7, 42))

    def test_choice_is_one_of_them(self):
        reply = self.ask(extra_body={"structured_outputs": {"choice": ["yes", "no", "perhaps"]}})
        self.assertIn(reply.choices[0].message.content, ("yes", "no", "perhaps"))

    def test_required_tool(self):
        reply = self.ask("What is the weather in Paris?", tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                         max_tokens=600)
        choice = reply.choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        call = choice.message.tool_calls[0]
        self.assertEqual(call.function.name, "get_weather")
        self.assertIn(json.loads(call.function.arguments)["city"], ("Paris", "London"))
        # The result goes back, and the conversation goes on.
        reply = self.client.chat.completions.create(
            model=self.model, max_tokens=8, tools=TOOLS, messages=[
                {"role": "user", "content": "What is the weather in Paris?"},
                choice.message,
                {"role": "tool", "tool_call_id": call.id, "content": "sunny"}])
        self.assertTrue(reply.id.startswith("chatcmpl-"))

    def test_prefix_is_cached(self):
        text = "Once upon a time there was a little dog. " * 60
        first = self.ask(text, max_tokens=2)
        second = self.ask(text, max_tokens=2)
        cached = second.usage.prompt_tokens_details.cached_tokens
        self.assertGreaterEqual(cached, second.usage.prompt_tokens - 64 - 1)
        self.assertEqual(first.choices[0].message.content, second.choices[0].message.content)

    def test_cancel_frees_the_request(self):
        prefix = "fathom:"
        stream = self.ask("Count", stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        headers = KEY
        def running():
            lines = self.server.get("/metrics", headers)[1].splitlines()
            return sum(float(l.rsplit(" ", 1)[1]) for l in lines
                       if l.startswith(prefix + "num_requests_running"))
        self.assertTrue(self.server.wait_for(lambda: running() == 0), "the request still runs")

    def test_completions(self):
        reply = self.client.completions.create(model=self.model, prompt="Once upon a time",
                                               max_tokens=8, temperature=0, logprobs=2, echo=True)
        self.assertTrue(reply.choices[0].text.startswith("Once upon a time"))
        ids = json.loads(self.server_post("/tokenize", {"prompt": "Once upon a time"}))["tokens"]
        many = self.client.completions.create(model=self.model, prompt=[ids, ids], max_tokens=4,
                                              temperature=0)
        self.assertEqual(many.choices[0].text, many.choices[1].text)

    def server_post(self, path, body):
        import urllib.request
        request = urllib.request.Request(
            self.server.url + path, json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.read().decode()

    def test_tokenize_round_trip(self):
        tokens = json.loads(self.server_post("/tokenize", {
            "prompt": "Größe: 3 km", "add_special_tokens": False}))
        back = json.loads(self.server_post("/detokenize", {"tokens": tokens["tokens"]}))
        self.assertEqual(back["prompt"], "Größe: 3 km")
        self.assertEqual(tokens["count"], len(tokens["tokens"]))

    def test_errors(self):
        with self.assertRaises(openai.AuthenticationError):
            OpenAI(base_url=self.server.url + "/v1", api_key="wrong", max_retries=0).models.list()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(temperature=9)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertIn("9", caught.exception.message)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(max_tokens=10**6)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_responses(self):
        question = {"model": self.model, "input": "What day comes after Monday?", "temperature": 0,
                    "max_output_tokens": 40}
        reply = self.client.responses.create(**question)
        self.assertEqual(reply.status, "completed")
        self.assertIn("Tuesday", reply.output_text)
        text = ""
        with self.client.responses.stream(**question) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
            final = stream.get_final_response()
        self.assertEqual(text, reply.output_text)
        self.assertEqual(final.output_text, reply.output_text)
        cut = self.client.responses.create(**{**question, "max_output_tokens": 2})
        self.assertEqual((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))

    def test_responses_call_tools(self):
        tool = {"type": "function", "strict": True, **TOOLS[0]["function"]}
        reply = self.client.responses.create(
            model=self.model, input="What is the weather in Paris?", tools=[tool],
            tool_choice="required", parallel_tool_calls=False,
            max_output_tokens=600)
        call = next(item for item in reply.output if item.type == "function_call")
        self.assertEqual(call.name, "get_weather")
        self.assertIn(json.loads(call.arguments)["city"], ("Paris", "London"))


if __name__ == "__main__":
    unittest.main()
