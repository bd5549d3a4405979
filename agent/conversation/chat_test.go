package conversation_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/internal/testing/webclient"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// chatURL is the path of the conversation "c" for chat clients.
const chatURL = "/v1/conversation/c/sandbox/" + testSandbox + "?provider=agent"

// uiText returns the user's message of a chat client.
func uiText(text string) []any {
	return []any{map[string]any{"id": "m1", "role": "user", "parts": []any{map[string]any{"type": "text", "text": text}}}}
}

// partsOf returns the parts of a chat client's message, one per line.
func partsOf(t testing.TB, message []byte) string {
	t.Helper()
	var m struct {
		Parts []struct {
			Type, Text, ToolName, State, ErrorText string
			Input, Output                          json.RawMessage
		}
	}
	if err := json.Unmarshal(message, &m); err != nil {
		t.Fatalf("%s: %v", message, err)
	}
	var lines []string
	for _, p := range m.Parts {
		line := strings.TrimRight(fmt.Sprintln(p.Type, p.ToolName, p.State, p.Text, string(p.Input), string(p.Output), p.ErrorText), " \n")
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// A chat of the AI SDK works with nothing but the URL of a conversation.
func TestChat(t *testing.T) {
	fx := newFixture(t)
	s := serveAPI(t, fx, fx.openService())
	order := webclient.Order{Client: "chat", API: s.url + chatURL, Token: "mine", ChatID: "c"}
	order.Texts = []string{"think hm\nsay <hello>\nrun echo out; false\npartial and more", "run echo ok"}
	got := webclient.Start(t, order).Last()
	if got.Failed != "" || len(got.Errors) > 0 || len(got.Messages) != 4 || got.Status != "ready" {
		t.Fatalf("the chat: %+v", got)
	}
	want := strings.Join([]string{
		"step-start", "reasoning done hm", "text done <hello>",
		`dynamic-tool Bash output-error {"command":"echo out; false"} Exit code 1 out`,
		"step-start", "text done and more",
	}, "\n")
	if parts := partsOf(t, got.Messages[1]); parts != want {
		t.Errorf("the first answer:\n%s\nwant\n%s", parts, want)
	}
	if parts := partsOf(t, got.Messages[3]); !strings.Contains(parts, "I remember 1 prompts.") || !strings.Contains(parts, `Bash output-available {"command":"echo ok"} "ok`) {
		t.Errorf("the second answer:\n%s", parts)
	}
	for _, f := range got.Finishes {
		if f.IsAbort || f.IsError || f.IsDisconnect {
			t.Errorf("an answer finished with %+v", f)
		}
	}

	// An agent that fails, and a request that is refused, are errors of the chat.
	order.Texts = []string{"say first\nfail no luck"}
	if got = webclient.Start(t, order).Last(); got.Status != "error" || !strings.Contains(fmt.Sprint(got.Errors), "no luck") {
		t.Errorf("an agent that fails: %+v", got)
	}
	order.Texts, order.Regenerate = []string{"say done"}, true
	if got = webclient.Start(t, order).Last(); got.Status != "error" || !strings.Contains(fmt.Sprint(got.Errors), "cannot be answered again") {
		t.Errorf("an answer that shall be made again: %+v", got)
	}
}

// A chat client finds a turn that runs, from its beginning, and learns when there is none, or when
// somebody cancels it.
func TestResumeChat(t *testing.T) {
	fx := newFixture(t)
	s := serveAPI(t, fx, fx.openService())
	resume := webclient.Order{Client: "resume", API: s.url + chatURL, Token: "mine", ChatID: "c"}
	if got := webclient.Start(t, resume).Last(); !got.Nothing {
		t.Errorf("before the first message: %+v", got)
	}
	send := webclient.Order{Client: "send", API: s.url + chatURL, Token: "mine", ChatID: "c", Messages: uiText("say begun\nrun " + untilGo + "\nsay over")}
	first := webclient.Start(t, send)
	first.Await("begun")
	second := webclient.Start(t, resume)
	second.Await("begun")
	letGo(t, fx.provider)
	for _, c := range []*webclient.Client{first, second} {
		got := c.Last()
		if parts := partsOf(t, got.Message); !strings.HasPrefix(parts, "step-start\ntext done begun\ndynamic-tool Bash output-available") || !strings.HasSuffix(parts, "text done over") {
			t.Errorf("the answer:\n%s\n%+v", parts, got)
		}
	}
	if got := webclient.Start(t, resume).Last(); !got.Nothing {
		t.Errorf("after the turn: %+v", got)
	}

	send.Messages = uiText("say begun\nrun sleep 1000")
	first = webclient.Start(t, send)
	first.Await("begun")
	if status, text, _ := s.sendRequest("POST", "/v1/conversation/c/cancel", ""); status != 204 {
		t.Fatalf("cancel: %d %s", status, text)
	}
	if got := first.Last(); got.Failed != "" || len(got.Errors) > 0 || !strings.Contains(string(got.Message), `"finishReason":"cancelled"`) {
		t.Errorf("a cancelled turn: %s %+v", got.Message, got)
	}
}

// Requests of chat clients, without one.
func TestChatRequests(t *testing.T) {
	fx := newFixture(t)
	v := fx.openService()
	s := serveAPI(t, fx, v)
	const url = "/conversation/c/sandbox/" + testSandbox
	message := func(text string) string {
		data, err := json.Marshal(uiText(text))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, test := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", url, `{"messages": ` + message("say a") + `, "prompt": "b"}`, 400, "only one of them"},
		{"POST", url, `{"messages": []}`, 400, "there are none"},
		{"POST", url, `{"messages": ` + message("say a") + `, "id": "other"}`, 400, "useChat({id: \\\"c\\\"})"},
		{"POST", url, `{"id": "c", "prompt": "say a"}`, 400, "messages, which are missing"},
		{"POST", url + "?stream=sse", `{"prompt": "say a"}`, 400, "is not events or ui"},
		{"POST", url + "?provider=agent", `{"prompt": "say a", "provider": "shell"}`, 400, "give it once"},
		{"POST", url, `{"messages": ` + message("say a") + `, "more": 1}`, 400, "unknown field"},
		{"POST", "/sandbox/" + testSandbox + "/claude", `{"messages": ` + message("say a") + `}`, 400, "unknown field"},
		{"GET", url + "/other/stream", "", 400, "give the chat the id"},
		{"GET", url + "/c/stream?stream=events", "", 400, "must be ui"},
		{"GET", url + "/c/stream?x=1", "", 400, "unknown parameter"},
		{"GET", url + "/c/stream", "", 204, ""},
		{"GET", "/conversation/c/stream?stream=ui", "", 204, ""},
		{"GET", "/conversation/c/stream?stream=no", "", 400, "is not events or ui"},
	} {
		if status, text, _ := s.sendRequest(test.method, test.path, test.body); status != test.status || !strings.Contains(text, test.want) {
			t.Errorf("%s %s %s: %d %s, want %d with %q", test.method, test.path, test.body, status, text, test.status, test.want)
		}
	}
	if status, text, _ := s.sendRequest("GET", "/conversation/c/stream?stream=ui", "", "Last-Event-ID", "a:1"); status != 400 {
		t.Errorf("with Last-Event-ID: %d %s", status, text)
	}

	// The first message may be sent again if it has failed, and there is no conversation yet.
	status, text, header := s.sendRequest("POST", "/v1"+url, `{"id": "c", "provider": "agent", "trigger": "regenerate-message", "messages": `+message("say first")+`}`)
	_, data := parseSSE(t, text)
	if status != 200 || header.Get("X-Vercel-Ai-Ui-Message-Stream") != "v1" || data[len(data)-1] != "[DONE]" || strings.Contains(text, "id: ") {
		t.Errorf("a chat: %d %v\n%s", status, header, text)
	}
	// Each form of the body can have each form of the stream.
	if status, text, _ = s.sendRequest("POST", url+"?stream=ui", `{"prompt": "say more"}`); status != 200 || !strings.Contains(text, `data: {"type":"text-delta"`) || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("a prompt with stream=ui: %d\n%s", status, text)
	}
	if status, text, _ = s.sendRequest("POST", url+"?stream=events", `{"messages": `+message("say more")+`}`); status != 200 || !strings.Contains(text, `{"type":"stream-start"`) || strings.Contains(text, "[DONE]") {
		t.Errorf("messages with stream=events: %d\n%s", status, text)
	}
	long := `{"messages": [{"role": "assistant", "parts": [{"type": "dynamic-tool", "output": "` + strings.Repeat("x", 8<<20) + `"}]},` + message("say short")[1:] + `}`
	if status, text, _ = s.sendRequest("POST", url, long); status != 200 || !strings.Contains(text, "short") {
		t.Errorf("a long chat: %d %.200s", status, text)
	}
	// A turn with the agent's own lines cannot be followed in another form.
	ctx := auth.WithAccount(t.Context(), auth.Account{Name: "mine"})
	p := newPrompt("run " + untilGo)
	p.Raw = true
	events, err := v.Send(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if status, text, _ = s.sendRequest("GET", "/conversation/c/stream?stream=ui", ""); status != 409 || !strings.Contains(text, "own lines") {
		t.Errorf("a raw turn: %d %s", status, text)
	}
	letGo(t, fx.provider)
	for _, err := range events {
		if err != nil {
			t.Fatal(err)
		}
	}
	if c, err := v.Messages(ctx, "c", "", 0); err != nil || c[0].Role != agent.RoleUser || c[0].Body != "say first" {
		t.Errorf("the first message: %+v, %v", c, err)
	}
}

// A standard EventSource ends with the turn, in both forms of the stream.
func TestEventSource(t *testing.T) {
	fx := newFixture(t)
	s := serveAPI(t, fx, fx.openService())
	s.sendRequest("POST", "/conversation/c/sandbox/"+testSandbox, `{"prompt": "say hello", "provider": "agent"}`)
	c := webclient.Start(t, webclient.Order{Client: "events", API: s.url + "/v1/conversation/c/stream", Token: "mine"})
	c.Await(`"type":"finish"`)
	if l := c.Next(); l.Status != 204.0 {
		t.Errorf("after the last event: %+v", l)
	}
	c.Last()
	c = webclient.Start(t, webclient.Order{Client: "events", API: s.url + "/v1/conversation/c/stream?stream=ui", Token: "mine"})
	if l := c.Next(); l.Status != 204.0 {
		t.Errorf("a chat after the last turn: %+v", l)
	}
	c.Last()
}
