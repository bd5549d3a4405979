package mcp

import (
	"context"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll/agent/tools"
)

// toolInfo returns t in the form of the SDK.
func (s *Server) toolInfo(t *tools.Tool) *sdk.Tool {
	open := s.kit.OpenWorld(t)
	return &sdk.Tool{
		Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.Input, OutputSchema: t.Output,
		Annotations: &sdk.ToolAnnotations{
			Title: t.Title, ReadOnlyHint: t.ReadOnly, DestructiveHint: &t.Destructive, IdempotentHint: t.Idempotent, OpenWorldHint: &open,
		},
	}
}

// callTool calls a tool. It returns the tool's error as a result, for the model.
func (s *Server) callTool(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	ctx, caller, done, err := s.beginCall(ctx, req.Session, req.Extra)
	if err != nil {
		return nil, err
	}
	defer done()
	if r := requestOf(req.Extra); r.keepAlive != nil {
		r.keepAlive()
	}
	out, err := s.kit.Answer(ctx, caller, req.Params.Name, req.Params.Arguments, progressReporter(ctx, req))
	if err != nil {
		return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: err.Error()}}}, nil
	}
	result := &sdk.CallToolResult{StructuredContent: out.JSON, Content: []sdk.Content{&sdk.TextContent{Text: out.Text}}}
	if hidesText(req.Session) {
		result.StructuredContent = nil
	}
	if m := out.Media; m != nil {
		result.Content = append(result.Content, newMediaContent(m))
	}
	return result, nil
}

// newMediaContent returns an image as such, and a PDF as an embedded resource: MCP has no other form for it.
func newMediaContent(m *tools.Media) sdk.Content {
	if m.Type == tools.TypePDF {
		return &sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: fileURI(m.Path), MIMEType: m.Type, Blob: m.Data}}
	}
	return &sdk.ImageContent{Data: m.Data, MIMEType: m.Type}
}

// textHiders are the names of clients that pass only the structured result to the model, if there is one.
// They get no structured result, so that the model reads plain text and sees images.
var textHiders = []string{"claude-code", "Visual Studio Code"}

// hidesText reports whether a client is one of textHiders.
func hidesText(client *sdk.ServerSession) bool {
	params := client.InitializeParams()
	return params != nil && params.ClientInfo != nil && slices.Contains(textHiders, params.ClientInfo.Name)
}

// hideSchemas removes the schemas of structured results from lists of tools for textHiders: a tool that has
// one must return such a result.
func hideSchemas(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		result, err := next(ctx, method, req)
		list, ok := result.(*sdk.ListToolsResult)
		if client, known := req.GetSession().(*sdk.ServerSession); err != nil || !ok || !known || !hidesText(client) {
			return result, err
		}
		with := *list
		with.Tools = nil
		for _, t := range list.Tools {
			plain := *t
			plain.OutputSchema = nil
			with.Tools = append(with.Tools, &plain)
		}
		return &with, nil
	}
}

// progressReporter returns a function that sends progress to the client, nil if it
// didn't ask for that.
func progressReporter(ctx context.Context, req *sdk.CallToolRequest) func(tools.Report) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	last := 0.0
	return func(r tools.Report) {
		last = max(r.Seconds, last+0.001) // progress has to increase
		// If this fails, the client has gone, which ends ctx.
		_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: last, Message: r.Message})
	}
}
