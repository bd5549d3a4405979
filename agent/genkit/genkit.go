// Package genkit offers the tools of package tools to agents that run on Genkit:
package genkit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core"
	"github.com/firebase/genkit/go/core/api"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// Options configure calls of tools. The zero value leaves the caller to the context.
type Options struct {
	// Caller is the default caller if the context has none; see WithCaller.
	Caller tools.Caller
	// Report, if not nil, is called now and then while a tool works, with its name and
	// the context of its call.
	Report func(ctx context.Context, name string, r tools.Report)

	session session.ScopeKind // from the agent's file, if there is one
}

// runName is the tool whose sandbox is independent of the caller.
const runName = "sandbox_run"

// Tools returns the tools of kit for ai.WithTools. The caller closes kit after their
// last call. They may be used concurrently.
//
// They are not registered, so that agents with other tools of these names can be in the
// same program. For lookup by name, as in prompts, each tool can be registered once: it
// is an ai.Tool, and genkit.RegisterAction accepts it. Genkit then prefers it to all
// other tools of its name, in every call of Generate.
func Tools(kit *tools.Kit, opts Options) []ai.ToolRef {
	var all []ai.ToolRef
	for _, t := range kit.Tools() {
		all = append(all, newSandboxTool(kit, t, opts))
	}
	return all
}

type callerKey struct{}

// WithCaller returns a context that makes c the caller of tools. The agent's name and
// environment may be left to Options.Caller: the steps of a workflow can share the
// context, and be separate agents.
func WithCaller(ctx context.Context, c tools.Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

func (o Options) callerOf(ctx context.Context) tools.Caller {
	c, ok := ctx.Value(callerKey{}).(tools.Caller)
	if !ok {
		return o.Caller
	}
	c.AgentName = cmp.Or(c.AgentName, o.Caller.AgentName)
	c.Environment = cmp.Or(c.Environment, o.Caller.Environment)
	return c
}

// checkCaller returns an error if c identifies no session.
func (o Options) checkCaller(c tools.Caller) error {
	if c.Scope != (session.Scope{}) {
		return c.Scope.Validate()
	}
	_, err := c.ExecutionContext.Scope(o.session)
	return err
}

// An action runs a tool, with Genkit's traces and metrics. It takes any input.
type action = core.ActionDef[any, *ai.MultipartToolResponse, struct{}]

// A sandboxTool is both a tool of Genkit and the action registered for it. Genkit's own
// type doesn't fit:
//
//   - It checks input against the schema that models see, and ends the generation when
//     a model gets a field wrong. Package tools checks as strictly, and explains.
//   - It stores the registry each time that it is registered, which Generate does in
//     every call: two concurrent calls would race.
type sandboxTool struct {
	*action
	desc api.ActionDesc
}

var (
	_ ai.Tool    = (*sandboxTool)(nil)
	_ api.Action = (*sandboxTool)(nil)
)

func newSandboxTool(kit *tools.Kit, t *tools.Tool, opts Options) *sandboxTool {
	run := func(ctx context.Context, input any) (*ai.MultipartToolResponse, error) {
		return callTool(ctx, kit, t, opts, input)
	}
	a := core.NewAction(t.Name, api.ActionTypeToolV2, map[string]any{
		"type": api.ActionTypeToolV2, "name": t.Name, "description": t.Description,
		"tool":                 map[string]any{"multipart": false},
		"originalOutputSchema": outputSchema(t.Output), // where Genkit looks for it
		"dynamic":              true,
	}, nil, run)
	desc := a.Desc()
	desc.InputSchema = asMap(t.Input)
	return &sandboxTool{a, desc}
}

// callTool calls a tool. It returns the tool's error as a result: {"error": "...",
// "kind": "..."}.
//
// Genkit ends the whole generation on an error: Generate returns it, the model never
// reads it, and the goroutines of other calls in the same turn wait forever. The same
// holds for the error of a context. As a result, the error is passed to the model; its
// call then fails with the context's own error, and Generate returns that.
func callTool(ctx context.Context, kit *tools.Kit, t *tools.Tool, opts Options, input any) (*ai.MultipartToolResponse, error) {
	data, err := json.Marshal(input)
	if err != nil {
		return nil, err
	}
	caller := opts.callerOf(ctx)
	if err := opts.checkCaller(caller); err != nil && t.Name != runName {
		// A model cannot correct this: it is a mistake of the program.
		return nil, fmt.Errorf("%w; see WithCaller and Options.Caller", err)
	}
	var report func(tools.Report)
	if opts.Report != nil {
		report = func(r tools.Report) { opts.Report(ctx, t.Name, r) }
	}
	data, err = kit.Call(ctx, caller, t.Name, data, report)
	if err != nil {
		return &ai.MultipartToolResponse{Output: map[string]any{"error": err.Error(), "kind": string(atoll.KindOf(err))}}, nil
	}
	resp := &ai.MultipartToolResponse{}
	return resp, json.Unmarshal(data, &resp.Output)
}

// Desc implements api.Action.
func (t *sandboxTool) Desc() api.ActionDesc { return t.desc }

// Definition implements ai.Tool.
func (t *sandboxTool) Definition() *ai.ToolDefinition {
	return &ai.ToolDefinition{
		Name: t.desc.Name, Description: t.desc.Description,
		InputSchema: t.desc.InputSchema, OutputSchema: t.desc.Metadata["originalOutputSchema"].(map[string]any),
		Metadata: map[string]any{"multipart": false},
	}
}

// RunRaw implements ai.Tool.
func (t *sandboxTool) RunRaw(ctx context.Context, input any) (any, error) {
	resp, err := t.RunRawMultipart(ctx, input)
	if err != nil {
		return nil, err
	}
	return resp.Output, nil
}

// RunRawMultipart implements ai.Tool.
func (t *sandboxTool) RunRawMultipart(ctx context.Context, input any) (*ai.MultipartToolResponse, error) {
	return t.Run(ctx, input, nil)
}

// genkitTool returns a tool of Genkit, for methods that don't depend on the tool.
func genkitTool() ai.Tool { return (*ai.ToolDef[any, any])(nil) }

// Respond implements ai.Tool.
func (t *sandboxTool) Respond(request *ai.Part, output any, opts *ai.RespondOptions) *ai.Part {
	return genkitTool().Respond(request, output, opts)
}

// Restart implements ai.Tool.
func (t *sandboxTool) Restart(request *ai.Part, opts *ai.RestartOptions) *ai.Part {
	return genkitTool().Restart(request, opts)
}

// Register implements ai.Tool and api.Action. A tool can be registered in many
// registries, but once in each.
func (t *sandboxTool) Register(r api.Registry) {
	r.RegisterAction(t.desc.Key, t)
}
