package mcp

import (
	"context"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll/agent/tools"
)

// shown is t as clients see it.
func (s *Server) shown(t *tools.Tool) *sdk.Tool {
	open := s.kit.OpenWorld(t)
	return &sdk.Tool{
		Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.Input, OutputSchema: t.Output,
		Annotations: &sdk.ToolAnnotations{
			Title: t.Title, ReadOnlyHint: t.ReadOnly, DestructiveHint: &t.Destructive, IdempotentHint: t.Idempotent, OpenWorldHint: &open,
		},
	}
}

// call calls a tool. What it cannot do is told to the model, as a result.
func (s *Server) call(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	ctx, caller, done, err := s.begin(ctx, req.Session, req.Extra)
	if err != nil {
		return nil, err
	}
	defer done()
	out, err := s.kit.Call(ctx, caller, req.Params.Name, req.Params.Arguments, reporter(ctx, req))
	if err != nil {
		return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: err.Error()}}}, nil
	}
	return &sdk.CallToolResult{StructuredContent: out, Content: []sdk.Content{&sdk.TextContent{Text: string(out)}}}, nil
}

// reporter tells the client how far the call is, if it wants to know.
func reporter(ctx context.Context, req *sdk.CallToolRequest) func(tools.Report) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	last := 0.0
	return func(r tools.Report) {
		last = max(r.Seconds, last+0.001) // it has to grow
		// A client that cannot be told has gone, which ends ctx.
		_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: last, Message: r.Message})
	}
}
