// Command workflow has three agents work on one program, one after the other, in the
// sandbox of their workflow: one writes it, one tests it, one mends it. Each is a
// client of its own by the Model Context Protocol, as any agent is that starts
// atoll mcp; what a model would decide is written down here.
//
//	go run ./examples/workflow -atoll bin/atoll
package main

import (
	"context"
	"encoding/json"
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
	if err := run(context.Background(), *atoll, id, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run is the workflow. At its end, its sandbox goes.
func run(ctx context.Context, atoll, id string, out io.Writer) error {
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
	}{{"writer", write}, {"tester", test}, {"debugger", debug}} {
		a, err := start(ctx, atoll, id, step.name, out)
		if err != nil {
			return err
		}
		a.call("sandbox_open", nil)
		fmt.Fprintf(out, "%s: %s\n", step.name, a.result["session_id"])
		step.do(a)
		a.client.Close()
		if a.err != nil {
			return a.err
		}
	}
	return nil
}

func write(a *agent) {
	a.call("sandbox_fs_write", input{"path": "add.sh", "content": "echo $(($1-$2))\n"})
	a.call("sandbox_fs_write", input{"path": "test.sh", "content": "got=$(sh add.sh 40 2)\n[ \"$got\" = 42 ] || { echo \"40 and 2 are $got, not 42\"; exit 1; }\n"})
}

func test(a *agent) {
	a.call("sandbox_exec", input{"command": "sh test.sh > report"})
	fmt.Fprintf(a.out, "%s: exit code %v\n", a.name, a.result["exit_code"])
}

func debug(a *agent) {
	a.call("sandbox_fs_read", input{"path": "report"})
	fmt.Fprintf(a.out, "%s: the report says: %s", a.name, a.result["content"])
	a.call("sandbox_fs_edit", input{"path": "add.sh", "old_text": "-", "new_text": "+"})
	a.call("sandbox_exec", input{"command": "sh test.sh && sh add.sh 40 2"})
	fmt.Fprintf(a.out, "%s: exit code %v, %s", a.name, a.result["exit_code"], a.result["stdout"])
}

// An agent is one MCP client. After an error its calls do nothing.
type agent struct {
	ctx    context.Context
	client *mcp.ClientSession
	name   string
	out    io.Writer
	result map[string]any // of the last call
	err    error          // the first one
}

type input map[string]any

// start starts the tools of an agent in the workflow.
func start(ctx context.Context, atoll, workflow, name string, out io.Writer) (*agent, error) {
	tools := exec.CommandContext(ctx, atoll, "mcp", "--workflow", workflow, "--agent-run", workflow+"_"+name)
	tools.Stderr = os.Stderr
	client, err := mcp.NewClient(&mcp.Implementation{Name: name}, nil).Connect(ctx, &mcp.CommandTransport{Command: tools}, nil)
	if err != nil {
		return nil, err
	}
	return &agent{ctx: ctx, client: client, name: name, out: out}, nil
}

// call calls a tool.
func (a *agent) call(tool string, in input) {
	if a.err != nil {
		return
	}
	a.result = nil
	r, err := a.client.CallTool(a.ctx, &mcp.CallToolParams{Name: tool, Arguments: in})
	if err != nil {
		a.err = err
		return
	}
	text := r.Content[0].(*mcp.TextContent).Text
	if r.IsError {
		a.err = fmt.Errorf("%s: %s", a.name, text)
		return
	}
	a.err = json.Unmarshal([]byte(text), &a.result)
}
