// Package genkit shows the tools of package tool to agents that run on Genkit:
//
//	kit, err := tools.New(p, tools.Options{})
//	ctx = genkit.WithCaller(ctx, tools.Caller{ExecutionContext: session.ExecutionContext{WorkflowRunID: "wf_1"}})
//	resp, err := core.Generate(ctx, g, ai.WithTools(genkit.Tools(kit, genkit.Options{})...), ai.WithMaxTurns(50))
//
// where core is Genkit's own package of this name. [Load] reads an agent file, and
// gives the tools of its mode.
//
// Genkit ends after 5 turns unless it is told otherwise. What tools take and give is
// in its traces, and goes where those go.
//
// It is a module of its own, so that whoever uses Atoll does not get Genkit's
// dependencies.
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

// Options say how tools are called. The zero value leaves that to the context.
type Options struct {
	// Caller is for whom tools are called where the context does not say so; see
	// WithCaller.
	Caller tools.Caller
	// Report, if it is not nil, is called now and then while a tool works, with
	// its name and the context that it was called with.
	Report func(ctx context.Context, name string, r tools.Report)

	session session.ScopeKind // what the agent's file says, if there is one
}

// runName is the tool that has a sandbox of its own, whoever calls it.
const runName = "sandbox_run"

// Tools returns the tools of kit, which is closed after their last call, for
// ai.WithTools. They may be used at once by many.
//
// They are not registered, so that agents with other tools of these names can be in
// the same program. Where they are found by name, as prompts do, each can be
// registered, once: it is an ai.Tool, and genkit.RegisterAction takes it. Genkit then
// prefers it to all that have its name, in every call of Generate.
func Tools(kit *tools.Kit, opts Options) []ai.ToolRef {
	var all []ai.ToolRef
	for _, t := range kit.Tools() {
		all = append(all, newSandboxTool(kit, t, opts))
	}
	return all
}

type callerKey struct{}

// WithCaller returns a context for which tools are called on behalf of c. The agent's
// name and environment may be left to Options.Caller: the steps of a workflow can
// share the context, and be agents of their own.
func WithCaller(ctx context.Context, c tools.Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

func (o Options) caller(ctx context.Context) tools.Caller {
	c, ok := ctx.Value(callerKey{}).(tools.Caller)
	if !ok {
		return o.Caller
	}
	c.AgentName = cmp.Or(c.AgentName, o.Caller.AgentName)
	c.Environment = cmp.Or(c.Environment, o.Caller.Environment)
	return c
}

// check reports whether there is a session for c.
func (o Options) check(c tools.Caller) error {
	if c.Scope != (session.Scope{}) {
		return c.Scope.Validate()
	}
	_, err := c.ExecutionContext.Scope(o.session)
	return err
}

// action runs a tool, with Genkit's traces and metrics. It takes any input.
type action = core.ActionDef[any, *ai.MultipartToolResponse, struct{}]

// A sandboxTool is both what Genkit calls a tool and the action that it registers for
// one. Genkit's own would not do:
//
//   - It checks input by the schema that models see, and ends the generation when a
//     model gets a field wrong. Package tools checks as strictly, and explains.
//   - It notes the registry each time that it is registered, which Generate does in
//     every call: two at once would race.
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
		return call(ctx, kit, t, opts, input)
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

// call calls a tool. Its error is an answer like any other: {"error": "...", "kind":
// "..."}.
//
// Genkit takes an error for the end of the whole generation: Generate returns it, the
// model never reads it, and of other calls that the model has asked for in the same
// turn the goroutines wait forever. That would also be so of a context that has ended.
// As an answer it is passed on to the model, the call of which fails with the
// context's own error, and that is what Generate returns.
func call(ctx context.Context, kit *tools.Kit, t *tools.Tool, opts Options, input any) (*ai.MultipartToolResponse, error) {
	data, err := json.Marshal(input)
	if err != nil {
		return nil, err
	}
	caller := opts.caller(ctx)
	if err := opts.check(caller); err != nil && t.Name != runName {
		// No model could do anything about it: it is for whoever wrote the program.
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

// theirs is a tool of Genkit's, for methods that ask nothing of the tool.
func theirs() ai.Tool { return (*ai.ToolDef[any, any])(nil) }

// Respond implements ai.Tool.
func (t *sandboxTool) Respond(request *ai.Part, output any, opts *ai.RespondOptions) *ai.Part {
	return theirs().Respond(request, output, opts)
}

// Restart implements ai.Tool.
func (t *sandboxTool) Restart(request *ai.Part, opts *ai.RestartOptions) *ai.Part {
	return theirs().Restart(request, opts)
}

// Register implements ai.Tool, and api.Action. It can be registered in many places,
// but once in each.
func (t *sandboxTool) Register(r api.Registry) {
	r.RegisterAction(t.desc.Key, t)
}
