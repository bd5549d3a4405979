// Command workflow runs three agents on one program, one after the other, in the sandbox of their
// workflow: the first writes the program, the second tests it, the third fixes it. Each agent is
// a client of the Model Context Protocol that starts atoll mcp. A real agent would ask a model
// for its actions; here they are constants.
//
//	go run ./examples/workflow -atoll bin/atoll
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	atoll := flag.String("atoll", "atoll", "path of the atoll command")
	flag.Parse()
	id := fmt.Sprintf("wf_%x", time.Now().UnixNano())
	if err := runWorkflow(context.Background(), *atoll, id, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// runWorkflow runs the agents, and then ends the workflow, which removes its sandbox.
func runWorkflow(ctx context.Context, atoll, id string, out io.Writer) error {
	defer func() {
		end := exec.CommandContext(context.WithoutCancel(ctx), atoll, "session", "end", "workflow/"+id)
		end.Stdout, end.Stderr = out, os.Stderr
		if err := end.Run(); err != nil {
			log.Printf("the workflow's end: %v", err)
		}
	}()
	for _, step := range []struct {
		name string
		do   func(a *agent)
	}{{"writer", writeProgram}, {"tester", testProgram}, {"debugger", debugProgram}} {
		a, err := startAgent(ctx, atoll, id, step.name, out)
		if err != nil {
			return err
		}
		a.callTool("sandbox_open", nil)
		fmt.Fprintf(out, "%s: %s\n", step.name, a.result["session_id"])
		step.do(a)
		a.client.Close()
		if a.err != nil {
			return a.err
		}
	}
	return nil
}

func writeProgram(a *agent) {
	a.callTool("sandbox_fs_write", input{"path": "add.sh", "content": "echo $(($1-$2))\n"})
	a.callTool("sandbox_fs_write", input{"path": "test.sh", "content": "got=$(sh add.sh 40 2)\n[ \"$got\" = 42 ] || { echo \"40 and 2 are $got, not 42\"; exit 1; }\n"})
}

func testProgram(a *agent) {
	a.callTool("sandbox_exec", input{"command": "sh test.sh > report"})
	fmt.Fprintf(a.out, "%s: exit code %v\n", a.name, a.result["exit_code"])
}

func debugProgram(a *agent) {
	a.callTool("sandbox_fs_read", input{"path": "report"})
	fmt.Fprintf(a.out, "%s: the report says: %s", a.name, a.result["content"])
	a.callTool("sandbox_fs_edit", input{"path": "add.sh", "old_text": "-", "new_text": "+"})
	a.callTool("sandbox_exec", input{"command": "sh test.sh && sh add.sh 40 2"})
	fmt.Fprintf(a.out, "%s: exit code %v, %s", a.name, a.result["exit_code"], a.result["stdout"])
}

// An agent is one MCP client. After an error, its calls do nothing.
type agent struct {
	ctx    context.Context
	client *mcp.ClientSession
	name   string
	out    io.Writer
	result map[string]any // result of the last call
	err    error          // the first error
}

type input map[string]any

// startAgent connects an agent to the tools of the workflow.
func startAgent(ctx context.Context, atoll, workflow, name string, out io.Writer) (*agent, error) {
	tools := exec.CommandContext(ctx, atoll, "mcp", "--workflow", workflow, "--agent-run", workflow+"_"+name)
	tools.Stderr = os.Stderr
	client, err := mcp.NewClient(&mcp.Implementation{Name: name}, nil).Connect(ctx, &mcp.CommandTransport{Command: tools}, nil)
	if err != nil {
		return nil, err
	}
	return &agent{ctx: ctx, client: client, name: name, out: out}, nil
}

// callTool calls a tool and stores its result in a.result.
func (a *agent) callTool(tool string, in input) {
	if a.err != nil {
		return
	}
	a.result = nil
	r, err := a.client.CallTool(a.ctx, &mcp.CallToolParams{Name: tool, Arguments: in})
	if err != nil {
		a.err = err
		return
	}
	if r.IsError {
		a.err = fmt.Errorf("%s: %s", a.name, r.Content[0].(*mcp.TextContent).Text)
		return
	}
	a.result, _ = r.StructuredContent.(map[string]any)
}
