package genkit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"
	core "github.com/firebase/genkit/go/genkit"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/genkit"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testsession"
	"github.com/seed46cd37a8/atoll/layer/session"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

type m = map[string]any

func newKit(t *testing.T, p atoll.Provider, opts tools.Options) *tools.Kit {
	t.Helper()
	kit, err := tools.New(p, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kit.Close() })
	return kit
}

func withWorkflow(ctx context.Context, id string) context.Context {
	return genkit.WithCaller(ctx, tools.Caller{ExecutionContext: session.ExecutionContext{WorkflowRunID: id}})
}

// A request is a call of a tool by the scripted model, with checks of the result:
// fields, and words in its error.
type request struct {
	tool  string
	input any
	want  m
	fails []string
}

// A script is a model that calls tools, some at once in each turn, and checks the
// results. It is stateless: the messages contain the results.
type script [][]request

// defineModel registers the model with g. seen, if not nil, gets each request.
func (s script) defineModel(t *testing.T, g *core.Genkit, name string, seen func(*ai.ModelRequest)) ai.Model {
	return core.DefineModel(g, name, &ai.ModelOptions{Supports: &ai.ModelSupports{Tools: true, Multiturn: true}},
		func(ctx context.Context, req *ai.ModelRequest, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			if err := ctx.Err(); err != nil {
				return nil, err // as a real client of a model would do
			}
			if seen != nil {
				seen(req)
			}
			turn := 0
			for _, msg := range req.Messages {
				if msg.Role == ai.RoleTool {
					turn++
				}
			}
			if turn > 0 {
				s.checkTurn(t, turn-1, req.Messages[len(req.Messages)-1])
			}
			reply := ai.NewModelTextMessage("done")
			if turn < len(s) {
				reply.Content = nil
				for i, r := range s[turn] {
					reply.Content = append(reply.Content, ai.NewToolRequestPart(&ai.ToolRequest{Name: r.tool, Input: r.input, Ref: fmt.Sprint(i)}))
				}
			}
			return &ai.ModelResponse{Request: req, Message: reply}, nil
		})
}

// checkTurn checks the results of the requests of a turn.
func (s script) checkTurn(t *testing.T, turn int, msg *ai.Message) {
	answers := map[string]m{}
	for _, part := range msg.Content {
		out, _ := part.ToolResponse.Output.(m)
		answers[part.ToolResponse.Ref] = out
	}
	for i, r := range s[turn] {
		out, ok := answers[fmt.Sprint(i)]
		if !ok {
			t.Errorf("turn %d, %s: no answer", turn, r.tool)
		}
		for field, want := range r.want {
			if got := out[field]; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("turn %d, %s: %s = %v, want %v; all is %v", turn, r.tool, field, got, want, out)
			}
		}
		text, _ := out["error"].(string)
		if (text == "") != (r.fails == nil) {
			t.Errorf("turn %d, %s: %v", turn, r.tool, out)
		}
		for _, word := range r.fails {
			if !strings.Contains(text, word) {
				t.Errorf("turn %d, %s: the error is %q, want %q in it", turn, r.tool, text, word)
			}
		}
	}
}

// runScript runs the script to its end.
func (s script) runScript(t *testing.T, ctx context.Context, tools []ai.ToolRef) {
	t.Helper()
	g := core.Init(t.Context())
	resp, err := core.Generate(ctx, g, ai.WithModel(s.defineModel(t, g, "test/script", nil)), ai.WithPrompt("go"), ai.WithTools(tools...), ai.WithMaxTurns(len(s)))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Text() != "done" {
		t.Errorf("the model said %q", resp.Text())
	}
}

func TestSession(t *testing.T) {
	p := testsession.Open(t)
	tools := genkit.Tools(newKit(t, p, tools.Options{}), genkit.Options{})
	script{
		{{tool: "sandbox_open", input: m{}, want: m{"session_id": "workflow_wf_1_sandbox", "status": "ready"}}},
		{{tool: "sandbox_fs_write", input: m{"path": "sub/hello.sh", "content": "echo hello; exit 3\n"}, want: m{"size_bytes": 19}}},
		{{tool: "sandbox_exec", input: m{"command": "sh sub/hello.sh"}, want: m{"exit_code": 3, "stdout": "hello\n", "stderr": ""}}},
		{{tool: "sandbox_fs_read", input: m{"path": "sub/hello.sh"}, want: m{"content": "echo hello; exit 3\n", "encoding": "text"}}},
		// The model reads an error, and tries again.
		{{tool: "sandbox_fs_read", input: m{"path": "none"}, want: m{"kind": "not exist"}, fails: []string{"sandbox_fs_read", "none"}}},
		{{tool: "sandbox_exec", input: m{"cmd": "true"}, want: m{"kind": "invalid"}, fails: []string{`no input "cmd"`, "command, timeout_seconds"}}},
		{{tool: "sandbox_exec", input: m{"command": 7}, want: m{"kind": "invalid"}, fails: []string{"command", "number"}}},
		{{tool: "sandbox_exec", input: m{"command": "true", "timeout_seconds": 1.5}, want: m{"kind": "invalid"}, fails: []string{"timeout_seconds"}}},
		{{tool: "sandbox_exec", input: "true", want: m{"kind": "invalid"}, fails: []string{"JSON object"}}},
		{{tool: "sandbox_exec", want: m{"kind": "invalid"}, fails: []string{`"command" is missing`}}},
		// Several at once, one of which fails.
		{
			{tool: "sandbox_exec", input: m{"command": "echo 1"}, want: m{"stdout": "1\n"}},
			{tool: "sandbox_fs_delete", input: m{"path": "sub"}, fails: []string{"recursive"}},
			{tool: "sandbox_exec", input: m{"command": "echo 2"}, want: m{"stdout": "2\n"}},
		},
		{{tool: "sandbox_close", want: m{"closed": true, "session_id": "workflow_wf_1_sandbox"}}},
	}.runScript(t, withWorkflow(t.Context(), "wf_1"), tools)
	if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
		t.Errorf("sandboxes are left: %+v, %v", all, err)
	}
}

// Models get the schemas of the kit's tools, without constructs that Genkit's plugins
// refuse.
func TestWhatModelsSee(t *testing.T) {
	kit := newKit(t, testsession.Open(t), tools.Options{})
	tools := genkit.Tools(kit, genkit.Options{})
	g := core.Init(t.Context())
	seen := map[string]*ai.ToolDefinition{}
	model := script{}.defineModel(t, g, "test/script", func(req *ai.ModelRequest) {
		for _, d := range req.Tools {
			seen[d.Name] = d
		}
	})
	if _, err := core.Generate(t.Context(), g, ai.WithModel(model), ai.WithPrompt("go"), ai.WithTools(tools...)); err != nil {
		t.Fatal(err)
	}
	if len(seen) != len(kit.Tools()) || len(tools) != len(seen) {
		t.Errorf("models see %v", slices.Sorted(maps.Keys(seen)))
	}
	for i, x := range kit.Tools() {
		d := seen[x.Name]
		if d == nil {
			t.Errorf("models do not see %s", x.Name)
			continue
		}
		if d.Description != x.Description || tools[i].Name() != x.Name {
			t.Errorf("%s is %+v", x.Name, d)
		}
		// Except for null, they equal the kit's.
		if got, want := toJSON(t, d.InputSchema), strings.ReplaceAll(toJSON(t, x.Input), `["null","array"]`, `"array"`); got != want {
			t.Errorf("%s takes\n%s, want\n%s", x.Name, got, want)
		}
		if got := findUntyped(d.InputSchema, x.Name); got != "" {
			t.Errorf("no single type has %s", got)
		}
		if got, want := toJSON(t, d.OutputSchema["anyOf"].([]any)[0]), toJSON(t, x.Output); got != want {
			t.Errorf("%s gives\n%s, want\n%s", x.Name, got, want)
		}
		if own := tools[i].(ai.Tool).Definition(); toJSON(t, own) != toJSON(t, d) {
			t.Errorf("%s says of itself\n%s, models see\n%s", x.Name, toJSON(t, own), toJSON(t, d))
		}
	}
}

// toJSON returns v as JSON, with sorted keys.
func toJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(data, &plain); err != nil {
		t.Fatal(err)
	}
	if data, err = json.Marshal(plain); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// findUntyped returns the parts of a schema whose type is not a single word.
func findUntyped(schema m, name string) string {
	if _, ok := schema["type"].(string); !ok {
		return name
	}
	for field, inner := range schema {
		switch inner := inner.(type) {
		case m:
			if field == "items" || field == "additionalProperties" {
				if bad := findUntyped(inner, name+"/"+field); bad != "" {
					return bad
				}
			}
			if field == "properties" {
				for property, s := range inner {
					if bad := findUntyped(s.(m), name+"/"+property); bad != "" {
						return bad
					}
				}
			}
		}
	}
	return ""
}

// Steps of one workflow share a sandbox; another workflow has its own. All use the same
// tools concurrently.
func TestWorkflows(t *testing.T) {
	p := testsession.Open(t)
	tools := genkit.Tools(newKit(t, p, tools.Options{}), genkit.Options{})
	var all sync.WaitGroup
	for _, id := range []string{"wf_1", "wf_2"} {
		all.Go(func() {
			ctx := withWorkflow(t.Context(), id)
			script{
				{{tool: "sandbox_open", want: m{"session_id": "workflow_" + id + "_sandbox"}}},
				{{tool: "sandbox_fs_write", input: m{"path": "only-" + id, "content": id}}},
			}.runScript(t, ctx, tools)
			script{
				{{tool: "sandbox_exec", input: m{"command": "ls"}, want: m{"stdout": "only-" + id + "\n"}}},
				{{tool: "sandbox_fs_read", input: m{"path": "only-" + id}, want: m{"content": id}}},
			}.runScript(t, ctx, tools)
		})
	}
	all.Wait()
	if closed, err := session.EndScope(t.Context(), p, "", session.Scope{Kind: session.ScopeWorkflow, ID: "wf_1"}); err != nil || len(closed) != 1 {
		t.Errorf("closed %v, %v", closed, err)
	}
	script{
		{{tool: "sandbox_fs_read", input: m{"path": "only-wf_2"}, want: m{"content": "wf_2"}}},
	}.runScript(t, withWorkflow(t.Context(), "wf_2"), tools)
}

// Generate registers tools each time, and many calls can share the tools of a kit.
func TestShared(t *testing.T) {
	tools := genkit.Tools(newKit(t, testsession.Open(t), tools.Options{}), genkit.Options{})
	g := core.Init(t.Context())
	model := script{}.defineModel(t, g, "test/script", nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				if _, err := core.Generate(t.Context(), g, ai.WithModel(model), ai.WithPrompt("go"), ai.WithTools(tools...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// When the context ends, all calls of tools end, and Generate returns the reason.
func TestCancel(t *testing.T) {
	kit := newKit(t, testsession.Open(t), tools.Options{})
	reports := make(chan string, 100)
	tools := genkit.Tools(kit, genkit.Options{Report: func(_ context.Context, name string, r tools.Report) { reports <- name + ": " + r.Message }})
	ctx, cancel := context.WithCancel(withWorkflow(t.Context(), "wf_1"))
	defer cancel()
	s := script{{
		{tool: "sandbox_exec", input: m{"command": "echo $$ > 1; echo working; sleep 1000"}},
		{tool: "sandbox_exec", input: m{"command": "echo $$ > 2; echo working; sleep 1000"}},
	}}
	g := core.Init(t.Context())
	done := make(chan error)
	go func() {
		_, err := core.Generate(ctx, g, ai.WithModel(s.defineModel(t, g, "test/script", nil)), ai.WithPrompt("go"), ai.WithTools(tools...))
		done <- err
	}()
	for range 2 {
		for r := range reports {
			if r == "sandbox_exec: working" {
				break
			}
		}
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Generate: %v", err)
		}
	case <-time.After(testenv.Scale(30 * time.Second)):
		t.Fatal("Generate has not returned")
	}
	script{
		{{tool: "sandbox_exec", input: m{"command": "for n in 1 2; do kill -0 $(cat $n) 2>/dev/null && echo lives; done; cat 1 2 | wc -l"}, want: m{"stdout": "2\n"}}},
	}.runScript(t, withWorkflow(t.Context(), "wf_1"), tools)
}

func TestCaller(t *testing.T) {
	p := testsession.Open(t)
	kit := newKit(t, p, tools.Options{})
	byDefault := tools.Caller{ExecutionContext: session.ExecutionContext{WorkflowRunID: "wf_default", AgentName: "writer", Environment: "test"}}
	named := func(c tools.Caller) context.Context { return genkit.WithCaller(t.Context(), c) }
	for _, tt := range []struct {
		ctx     context.Context
		want    string
		agent   string
		problem string
	}{
		{ctx: t.Context(), want: "workflow_wf_default_sandbox", agent: "writer"},
		{ctx: withWorkflow(t.Context(), "wf_1"), want: "workflow_wf_1_sandbox", agent: "writer"},
		{ctx: named(tools.Caller{ExecutionContext: session.ExecutionContext{AgentRunID: "run_1", AgentName: "tester"}}), want: "agent_run_1_sandbox", agent: "tester"},
		{ctx: named(tools.Caller{Scope: session.Scope{Kind: session.ScopeConversation, ID: "c1"}}), want: "conversation_c1_sandbox", agent: "writer"},
		// A complete caller is used as it is, never mixed with another's sandbox.
		{ctx: named(tools.Caller{}), problem: "WithCaller"},
		{ctx: withWorkflow(t.Context(), "../x"), problem: "../x"},
		{ctx: named(tools.Caller{Scope: session.Scope{Kind: "flow", ID: "c1"}}), problem: `"flow"`},
	} {
		open := findTool(t, genkit.Tools(kit, genkit.Options{Caller: byDefault}), "sandbox_open")
		out, err := open.RunRaw(tt.ctx, m{})
		if tt.problem != "" {
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%+v, %v, want an error with %s", out, err, tt.problem)
			}
			continue
		}
		if err != nil || out.(m)["session_id"] != tt.want {
			t.Errorf("%v, %v, want %s", out, err, tt.want)
			continue
		}
		sb, err := p.Get(t.Context(), out.(m)["sandbox_id"].(string))
		if err != nil {
			t.Fatal(err)
		}
		st, err := sb.Status(t.Context())
		if err != nil || st.Spec.Labels["agent"] != tt.agent || st.Spec.Labels["environment"] != "test" {
			t.Errorf("%s: the labels are %v, %v", tt.want, st.Spec.Labels, err)
		}
	}

	// A missing caller is a mistake of the program, and Generate returns it.
	g := core.Init(t.Context())
	s := script{{{tool: "sandbox_open"}}}
	_, err := core.Generate(t.Context(), g, ai.WithModel(s.defineModel(t, g, "test/script", nil)), ai.WithPrompt("go"), ai.WithTools(genkit.Tools(kit, genkit.Options{})...))
	if err == nil || !strings.Contains(err.Error(), "WithCaller") {
		t.Errorf("Generate: %v", err)
	}
	// sandbox_run needs no caller.
	script{
		{{tool: "sandbox_run", input: m{"runtime": "bash", "code": "echo $1", "args": []string{"x"}}, want: m{"ok": true, "stdout": "x\n"}}},
	}.runScript(t, t.Context(), genkit.Tools(newKit(t, p, tools.Options{Images: frontmatter.Images{Shortcuts: map[string]string{"linux": "host"}}}), genkit.Options{}))
}

func findTool(t *testing.T, tools []ai.ToolRef, name string) ai.Tool {
	t.Helper()
	i := slices.IndexFunc(tools, func(r ai.ToolRef) bool { return r.Name() == name })
	if i < 0 {
		t.Fatalf("there is no %s", name)
	}
	return tools[i].(ai.Tool)
}

// Registered tools are found by name, for example by prompts.
func TestRegistered(t *testing.T) {
	kit := newKit(t, testsession.Open(t), tools.Options{})
	g := core.Init(t.Context())
	for _, ref := range genkit.Tools(kit, genkit.Options{}) {
		core.RegisterAction(g, ref.(ai.Tool))
	}
	s := script{{{tool: "sandbox_exec", input: m{"command": "echo hello"}, want: m{"stdout": "hello\n"}}}}
	prompt := core.DefinePrompt(g, "greet", ai.WithModel(s.defineModel(t, g, "test/script", nil)), ai.WithPrompt("go"), ai.WithTools(ai.ToolName("sandbox_exec")))
	resp, err := prompt.Execute(withWorkflow(t.Context(), "wf_1"))
	if err != nil || resp.Text() != "done" {
		t.Errorf("%v, %v", resp, err)
	}
	found := core.LookupTool(g, "sandbox_exec")
	if found == nil {
		t.Fatal("sandbox_exec is not found")
	}
	out, err := found.RunRaw(withWorkflow(t.Context(), "wf_1"), m{"command": 7})
	if err != nil || out.(m)["kind"] != "invalid" {
		t.Errorf("%v, %v", out, err)
	}
}

// Programs can answer for a tool, or call it later.
func TestRespondAndRestart(t *testing.T) {
	exec := findTool(t, genkit.Tools(newKit(t, testsession.Open(t), tools.Options{}), genkit.Options{}), "sandbox_exec")
	asked := ai.NewToolRequestPart(&ai.ToolRequest{Name: "sandbox_exec", Ref: "1", Input: m{"command": "rm -rf /"}})
	if r := exec.Respond(asked, m{"error": "no"}, nil).ToolResponse; r.Name != "sandbox_exec" || r.Ref != "1" || r.Output.(m)["error"] != "no" {
		t.Errorf("the response is %+v", r)
	}
	if r := exec.Restart(asked, &ai.RestartOptions{ReplaceInput: m{"command": "ls"}}).ToolRequest; r.Ref != "1" || r.Input.(m)["command"] != "ls" {
		t.Errorf("the request is %+v", r)
	}
}

func TestLoad(t *testing.T) {
	p := testsession.Open(t)
	names := func(a *genkit.Agent) string {
		var list []string
		for _, ref := range a.Tools {
			list = append(list, ref.Name())
		}
		return strings.Join(list, " ")
	}
	const code = "sandbox_open sandbox_close sandbox_exec sandbox_process_read sandbox_process_wait sandbox_process_write sandbox_process_kill " +
		"sandbox_fs_write sandbox_fs_read sandbox_fs_list sandbox_fs_delete sandbox_fs_edit sandbox_fs_search"
	load := func(name, text string) (*genkit.Agent, error) {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		a, err := genkit.Load(file, p, tools.Options{Images: frontmatter.Images{Shortcuts: map[string]string{"linux": "host"}}}, genkit.Options{})
		if err == nil {
			t.Cleanup(func() {
				if err := a.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		return a, err
	}
	for _, tt := range []struct{ text, want string }{
		{"---\nsandbox: python\n---\n", "sandbox_run"},
		{"---\nsandbox:\n  mode: code\n---\n", code},
		{"---\nmodel: openai/gpt-4o\n---\n", ""},
		{"You have no sandbox.\n", ""},
	} {
		a, err := load("agent.md", tt.text)
		if err != nil || names(a) != tt.want {
			t.Errorf("%q has %v, %v, want %q", tt.text, a, err, tt.want)
		}
	}
	if _, err := load("agent.md", "---\nsandbox:\n  mode: cod\n---\n"); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "agent.md:3") {
		t.Errorf("of a mode that is none: %v", err)
	}
	if _, err := genkit.Load(filepath.Join(t.TempDir(), "none.md"), p, tools.Options{}, genkit.Options{}); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("of a file that is not there: %v", err)
	}

	a, err := load("coder.md", "---\nsandbox:\n  mode: code\n  session: agent\n  limits:\n    max_files: 1\n---\nYou write code.\n")
	if err != nil {
		t.Fatal(err)
	}
	if a.Name != "coder" || a.Body != "You write code.\n" {
		t.Errorf("the agent is %+v", a)
	}
	run := session.ExecutionContext{WorkflowRunID: "wf_1", AgentRunID: "run_1"}
	script{
		{{tool: "sandbox_open", want: m{"session_id": "agent_run_1_sandbox"}}},
		{{tool: "sandbox_fs_write", input: m{"path": "1", "content": ""}}},
		{{tool: "sandbox_fs_write", input: m{"path": "2", "content": ""}, want: m{"kind": "exhausted"}, fails: []string{"sandbox_fs_delete"}}},
	}.runScript(t, genkit.WithCaller(t.Context(), tools.Caller{ExecutionContext: run}), a.Tools)
	if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) != 1 || all[0].Spec.Labels["agent"] != "coder" {
		t.Errorf("the sandboxes are %+v, %v", all, err)
	}
	// A workflow's sandbox differs from that of an agent with a session of its own.
	if out, err := findTool(t, a.Tools, "sandbox_open").RunRaw(withWorkflow(t.Context(), "wf_1"), nil); err == nil {
		t.Errorf("without an agent's run: %v", out)
	}
}
