package genkit_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/firebase/genkit/go/ai"
	core "github.com/firebase/genkit/go/genkit"

	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/genkit"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// An agent file, a workflow with one step, and its end. Package local does not isolate:
// use another provider, and a real model.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "atoll")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	boxes, err := local.New(local.Options{Dir: filepath.Join(dir, "local")})
	if err != nil {
		log.Fatal(err)
	}
	p := session.New(boxes, sqlite.New(filepath.Join(dir, "atoll.db")), session.Options{})
	defer p.Close()

	agent, err := genkit.Load("../../examples/agents/code-developer.md", p, tools.Options{
		Images: frontmatter.Images{Shortcuts: map[string]string{"linux": "host"}},
	}, genkit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer agent.Close()

	g := core.Init(ctx)
	run := session.Scope{Kind: session.ScopeWorkflow, ID: "wf_abc123"}
	ctx = genkit.WithCaller(ctx, tools.Caller{ExecutionContext: session.ExecutionContext{WorkflowRunID: run.ID}})
	resp, err := core.Generate(ctx, g,
		ai.WithModel(newEcho(g)), ai.WithSystem(agent.Body), ai.WithPrompt("Say hello."),
		ai.WithTools(agent.Tools...), ai.WithMaxTurns(50))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(resp.Text())

	closed, err := session.EndScope(ctx, p, "", run)
	fmt.Println(closed, err)
	// Output:
	// hello
	// [workflow_wf_abc123_sandbox] <nil>
}

// newEcho returns a model that runs one command, and repeats its output.
func newEcho(g *core.Genkit) ai.Model {
	return core.DefineModel(g, "example/echo", &ai.ModelOptions{Supports: &ai.ModelSupports{Tools: true, Multiturn: true, SystemRole: true}},
		func(_ context.Context, req *ai.ModelRequest, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			reply := ai.NewModelMessage(ai.NewToolRequestPart(&ai.ToolRequest{Name: "sandbox_exec", Input: map[string]any{"command": "echo hello"}}))
			if last := req.Messages[len(req.Messages)-1]; last.Role == ai.RoleTool {
				out := last.Content[0].ToolResponse.Output.(map[string]any)
				reply = ai.NewModelTextMessage(out["stdout"].(string))
			}
			return &ai.ModelResponse{Request: req, Message: reply}, nil
		})
}
