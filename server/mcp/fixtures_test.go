//lint:file-ignore SA1019 the suite tries what is deprecated, too

package mcp_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Fixtures that the conformance suite expects under its own names, since it cannot use
// the tools of package mcp.

// The smallest PNG and WAV.
const (
	tinyPNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
	tinyWAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
)

func decodeBase64(text string) []byte {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return data
}

func newEmbedded(uri, text string) *sdk.EmbeddedResource {
	return &sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: uri, MIMEType: "text/plain", Text: text}}
}

// adaptFixtures enables the capabilities that the suite tests.
func adaptFixtures(opts *sdk.ServerOptions) {
	opts.Capabilities = nil // the SDK infers them, including logging
	opts.CompletionHandler = func(context.Context, *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
		return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{}}}, nil
	}
	opts.SubscribeHandler = func(context.Context, *sdk.SubscribeRequest) error { return nil }
	opts.UnsubscribeHandler = func(context.Context, *sdk.UnsubscribeRequest) error { return nil }
}

func addFixtures(s *sdk.Server) {
	png, wav := &sdk.ImageContent{Data: decodeBase64(tinyPNG), MIMEType: "image/png"}, &sdk.AudioContent{Data: decodeBase64(tinyWAV), MIMEType: "audio/wav"}
	gives := func(contents ...sdk.Content) sdk.ToolHandler {
		return func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: contents}, nil
		}
	}
	for name, handler := range map[string]sdk.ToolHandler{
		"test_simple_text":                  gives(&sdk.TextContent{Text: "This is a simple text response for testing."}),
		"test_image_content":                gives(png),
		"test_audio_content":                gives(wav),
		"test_embedded_resource":            gives(newEmbedded("test://embedded-resource", "This is an embedded resource")),
		"test_multiple_content_types":       gives(&sdk.TextContent{Text: "text"}, png, newEmbedded("test://embedded-in-multiple", "text")),
		"test_tool_with_logging":            callLogs,
		"test_tool_with_progress":           callProgress,
		"test_error_handling":               callError,
		"test_sampling":                     callSampling,
		"test_elicitation":                  newElicitor(nil),
		"test_elicitation_sep1034_defaults": newElicitor(defaultsSchema),
		"test_elicitation_sep1330_enums":    newElicitor(enumsSchema),
		"test_reconnection":                 callReconnect,
	} {
		s.AddTool(&sdk.Tool{Name: name, Description: "of the conformance suite", InputSchema: json.RawMessage(`{"type":"object"}`)}, handler)
	}
	s.AddTool(&sdk.Tool{
		Name: "json_schema_2020_12_tool", Description: "of the conformance suite", InputSchema: json.RawMessage(`{
			"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
			"$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
			"properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}}, "additionalProperties": false}`),
	}, gives(&sdk.TextContent{Text: "called"}))

	resource := func(c *sdk.ResourceContents) sdk.ResourceHandler {
		return func(_ context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			with := *c
			with.URI, with.Text = req.Params.URI, strings.ReplaceAll(c.Text, "{id}", strings.Split(req.Params.URI+"///", "/")[3])
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{&with}}, nil
		}
	}
	text := &sdk.ResourceContents{MIMEType: "text/plain", Text: "This is the content of the static text resource."}
	s.AddResource(&sdk.Resource{Name: "text", URI: "test://static-text", MIMEType: "text/plain"}, resource(text))
	s.AddResource(&sdk.Resource{Name: "watched", URI: "test://watched-resource", MIMEType: "text/plain"}, resource(text))
	s.AddResource(&sdk.Resource{Name: "binary", URI: "test://static-binary", MIMEType: "image/png"}, resource(&sdk.ResourceContents{MIMEType: "image/png", Blob: decodeBase64(tinyPNG)}))
	s.AddResourceTemplate(&sdk.ResourceTemplate{Name: "template", URITemplate: "test://template/{id}/data", MIMEType: "application/json"},
		resource(&sdk.ResourceContents{MIMEType: "application/json", Text: `{"id": "{id}", "templateTest": true, "data": "Data for ID: {id}"}`}))

	prompt := func(name string, args []string, messages func(args map[string]string) []sdk.Content) {
		p := &sdk.Prompt{Name: name, Description: "of the conformance suite"}
		for _, a := range args {
			p.Arguments = append(p.Arguments, &sdk.PromptArgument{Name: a, Required: true})
		}
		s.AddPrompt(p, func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			r := &sdk.GetPromptResult{}
			for _, c := range messages(req.Params.Arguments) {
				r.Messages = append(r.Messages, &sdk.PromptMessage{Role: "user", Content: c})
			}
			return r, nil
		})
	}
	prompt("test_simple_prompt", nil, func(map[string]string) []sdk.Content {
		return []sdk.Content{&sdk.TextContent{Text: "This is a simple prompt for testing."}}
	})
	prompt("test_prompt_with_arguments", []string{"arg1", "arg2"}, func(args map[string]string) []sdk.Content {
		return []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", args["arg1"], args["arg2"])}}
	})
	prompt("test_prompt_with_embedded_resource", []string{"resourceUri"}, func(args map[string]string) []sdk.Content {
		return []sdk.Content{newEmbedded(args["resourceUri"], "Embedded resource content for testing."), &sdk.TextContent{Text: "Please process the embedded resource above."}}
	})
	prompt("test_prompt_with_image", nil, func(map[string]string) []sdk.Content {
		return []sdk.Content{png, &sdk.TextContent{Text: "Please analyze the image above."}}
	})
}

func textResult(format string, args ...any) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

func callLogs(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	for _, text := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
		if err := req.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: text}); err != nil {
			return nil, err
		}
	}
	return textResult("logged"), nil
}

func callProgress(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	token := req.Params.GetProgressToken()
	for _, done := range []float64{0, 50, 100} {
		if err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100}); err != nil {
			return nil, err
		}
	}
	return textResult("%v", token), nil
}

func callError(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	r := &sdk.CallToolResult{}
	r.SetError(errors.New("this tool intentionally returns an error for testing"))
	return r, nil
}

func callSampling(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	var in struct{ Prompt string }
	if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
		return nil, err
	}
	r, err := req.Session.CreateMessage(ctx, &sdk.CreateMessageParams{
		Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: in.Prompt}}}, MaxTokens: 100,
	})
	if err != nil {
		return nil, err
	}
	return textResult("LLM response: %s", r.Content.(*sdk.TextContent).Text), nil
}

// newElicitor asks the user for values of a schema, by default for a name.
func newElicitor(schema json.RawMessage) sdk.ToolHandler {
	return func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		ask := &sdk.ElicitParams{Message: "Test", RequestedSchema: schema}
		if schema == nil {
			var in struct{ Message string }
			if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
				return nil, err
			}
			ask = &sdk.ElicitParams{Message: in.Message, RequestedSchema: json.RawMessage(`{"type":"object","properties":{"username":{"type":"string"}},"required":["username"]}`)}
		}
		r, err := req.Session.Elicit(ctx, ask)
		if err != nil {
			return nil, err
		}
		return textResult("Elicitation result: action=%s, content=%v", r.Action, r.Content), nil
	}
}

var (
	defaultsSchema = json.RawMessage(`{"type":"object","properties":{
		"name":{"type":"string","default":"John Doe"}, "age":{"type":"integer","default":30}, "score":{"type":"number","default":95.5},
		"status":{"type":"string","enum":["active","inactive","pending"],"default":"active"}, "verified":{"type":"boolean","default":true}}}`)
	enumsSchema = json.RawMessage(`{"type":"object","properties":{
		"untitledSingle":{"type":"string","enum":["option1","option2","option3"]},
		"titledSingle":{"type":"string","oneOf":[{"const":"value1","title":"First Option"},{"const":"value2","title":"Second Option"},{"const":"value3","title":"Third Option"}]},
		"legacyEnum":{"type":"string","enum":["opt1","opt2","opt3"],"enumNames":["Option One","Option Two","Option Three"]},
		"untitledMulti":{"type":"array","minItems":1,"maxItems":3,"items":{"type":"string","enum":["option1","option2","option3"]}},
		"titledMulti":{"type":"array","minItems":1,"maxItems":3,"items":{"anyOf":[{"const":"value1","title":"First Option"},{"const":"value2","title":"Second Option"},{"const":"value3","title":"Third Option"}]}}}}`)
)

func callReconnect(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	req.Extra.CloseSSEStream(sdk.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
	return textResult("reconnected"), nil
}
