// Package openapi describes the API of package api: it generates an OpenAPI 3.1
// document from the routes and their Go types, and serves it with a page that shows it. It is a separate
// package because servers of a single sandbox don't need it, and must start fast.
//
//	handler, err := api.NewHandler(p, api.Options{Docs: openapi.Handler(version)})
package openapi

import (
	"cmp"
	_ "embed"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/uistream"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/server/api"
)

//go:embed intro.md
var intro string

const schemaPrefix = "#/components/schemas/"

// proxied lists the methods under which a route for any method is described.
var proxied = []string{"GET", "POST", "PUT", "PATCH", "DELETE"}

// Document describes the API of a server of the given version.
func Document(version string) *huma.OpenAPI {
	b := builder{schemas: huma.NewMapRegistry(schemaPrefix, schemaName)}
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Atoll", Version: version, Description: intro + describeStreams(),
			License: &huma.License{Name: "Apache 2.0", Identifier: "Apache-2.0"}, Contact: &huma.Contact{Name: "Atoll", URL: "https://" + module},
		},
		Servers:  []*huma.Server{{URL: "/", Description: "The server that serves this document"}},
		Security: []map[string][]string{{"token": {}}},
		Components: &huma.Components{
			Schemas:         b.schemas,
			Responses:       map[string]*huma.Response{"Error": {Description: "An error", Content: b.mediaTypes(api.ErrorContent())}},
			SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}},
		},
	}
	for _, route := range api.Routes() {
		if route.Alias || isStream(route) { // describeStreams describes streams
			continue
		}
		if !hasTag(doc, route.Tag) {
			doc.Tags = append(doc.Tags, &huma.Tag{Name: route.Tag, Description: tagDocs[route.Tag]})
		}
		if route.Method != "" {
			doc.AddOperation(b.newOperation(route))
			continue
		}
		for _, method := range proxied {
			r := route
			r.Method, r.Name = method, route.Name+method[:1]+strings.ToLower(method[1:])
			doc.AddOperation(b.newOperation(r))
		}
	}
	loadComments().describeSchemas(b.schemas)
	b.finishSchemas()
	return doc
}

// tagDocs describes the tags.
var tagDocs = map[string]string{
	"server":        "The server, its providers, and how ready they are.",
	"projects":      "Projects, which separate the sandboxes, volumes and keys of teams.",
	"sandboxes":     "Sandboxes, from their creation to their end.",
	"processes":     "Commands in a sandbox: their input, output and signals.",
	"files":         "The files of a sandbox.",
	"ports":         "Programs in a sandbox that listen on a port.",
	"volumes":       "Volumes, which outlive sandboxes.",
	"images":        "Images that the server has stored.",
	"snapshots":     "Snapshots, from which other sandboxes start.",
	"workspaces":    "Directories and git repositories that sandboxes work on.",
	"sessions":      "Sandboxes of workflows, agents and conversations.",
	"tools":         "Tools for models, as over MCP.",
	"conversations": "Conversations with agents, each in a sandbox.",
	"agents":        "The sandboxes of agents and their files.",
	"keys":          "API keys.",
	"audit":         "The audit log.",
}

// isStream reports whether a route upgrades the connection, which OpenAPI cannot describe.
func isStream(r api.Route) bool { return r.Status == http.StatusSwitchingProtocols }

// describeStreams lists the routes that upgrade the connection, in Markdown. It follows the intro.
func describeStreams() string {
	var b strings.Builder
	for _, r := range api.Routes() {
		if isStream(r) {
			fmt.Fprintf(&b, "- `%s`: %s. %s\n", r.Path, r.Summary, r.Doc)
		}
	}
	return b.String() + "\n</details>\n"
}

func hasTag(doc *huma.OpenAPI, name string) bool {
	return slices.ContainsFunc(doc.Tags, func(t *huma.Tag) bool { return t.Name == name })
}

// schemaNames has the schema names of types that share their name with a type of another package.
var schemaNames = map[reflect.Type]string{
	reflect.TypeFor[agent.File]():         "AgentFile",
	reflect.TypeFor[agent.FilePage]():     "AgentFilePage",
	reflect.TypeFor[agent.Sandbox]():      "AgentSandbox",
	reflect.TypeFor[agent.Stats]():        "ConversationStats",
	reflect.TypeFor[agent.ToolCall]():     "MessageToolCall",
	reflect.TypeFor[uistream.Message]():   "UIMessage",
	reflect.TypeFor[uistream.Part]():      "UIMessagePart",
	reflect.TypeFor[pool.Report]():        "PoolReport",
	reflect.TypeFor[pool.Stats]():         "PoolStats",
	reflect.TypeFor[session.OpenResult](): "OpenedSession",
	reflect.TypeFor[session.Spec]():       "SessionSpec",
	reflect.TypeFor[workspace.Spec]():     "WorkspaceSpec",
}

// schemaName returns the name of a type's schema: that of the Go type with a capital letter.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name, ok := schemaNames[t]; ok {
		return name
	}
	name := huma.DefaultSchemaNamer(t, hint)
	if name == "IDReply" {
		return "IdReply"
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

type builder struct{ schemas huma.Registry }

func (b builder) newOperation(r api.Route) *huma.Operation {
	op := &huma.Operation{
		Method: r.Method, Path: strings.ReplaceAll(r.Path, "...}", "}"), OperationID: r.Name,
		Tags: []string{r.Tag}, Summary: r.Summary, Description: cmp.Or(r.Doc, r.Summary+"."),
		Responses: map[string]*huma.Response{},
	}
	if r.Public {
		op.Security = []map[string][]string{{}}
	}
	for part := range strings.SplitSeq(op.Path, "/") {
		if strings.HasPrefix(part, "{") {
			op.Parameters = append(op.Parameters, pathParam(strings.Trim(part, "{}")))
		}
	}
	for _, p := range r.Params {
		op.Parameters = append(op.Parameters, queryParam(p))
	}
	if r.Body.Media != "" {
		op.RequestBody = &huma.RequestBody{Required: true, Content: b.mediaTypes(r.Body)}
	}
	status := r.Status
	if status == 0 {
		status = http.StatusOK
	}
	op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: b.mediaTypes(r.Reply)}
	for _, status := range []string{"4XX", "5XX"} {
		op.Responses[status] = &huma.Response{Ref: "#/components/responses/Error"}
	}
	return op
}

func pathParam(name string) *huma.Param {
	doc := map[string]string{
		"id":             "of the sandbox, a UUID with or without hyphens, or of the snapshot",
		"pid":            "of the process; that of a sandbox's own command is `main`",
		"port":           "a TCP port inside; with a link that replaces the token, `PORT~LINK`",
		"path":           "the path on that port; it may hold slashes",
		"chatId":         "of the chat: the id of the conversation",
		"conversationId": "of the conversation: a UUID or a name, which the client chooses",
		"sandboxId":      "of the sandbox: a UUID or a name, which the client chooses",
	}
	return &huma.Param{Name: name, In: "path", Required: true, Description: doc[name], Schema: &huma.Schema{Type: huma.TypeString}}
}

func queryParam(p api.Param) *huma.Param {
	schema := &huma.Schema{Type: p.Type}
	if p.Many {
		schema = &huma.Schema{Type: huma.TypeArray, Items: schema}
	}
	return &huma.Param{Name: p.Name, In: "query", Required: p.Required, Description: p.Doc, Schema: schema}
}

func (b builder) mediaTypes(c api.Content) map[string]*huma.MediaType {
	if c.Media == "" {
		return nil
	}
	schema := &huma.Schema{Type: huma.TypeString, Format: "binary"}
	if c.Type != nil {
		schema = b.schemaOf(c.Type)
	}
	return map[string]*huma.MediaType{c.Media: {Schema: schema}}
}

func (b builder) schemaOf(t reflect.Type) *huma.Schema { return b.schemas.Schema(t, true, t.Name()) }

// finishSchemas removes constraints that Go types imply, and adds examples.
func (b builder) finishSchemas() {
	for name, schema := range b.schemas.Map() {
		schema.AdditionalProperties = nil // a newer server may send more fields
		if example := examples[name]; example != nil {
			schema.Examples = []any{example}
		}
	}
}

// examples has an example for schemas of requests.
var examples = map[string]any{
	"Spec": map[string]any{
		"name": "web", "image": "python:3.12", "network": map[string]any{"mode": "egress", "allow": []string{"pypi.org"}},
		"resources": map[string]any{"memory": 2 << 30, "cpus": 1.5}, "ttl": "24h", "labels": map[string]string{"team": "search"},
	},
	"CreateRequest": map[string]any{
		"name": "agent", "network": map[string]any{"mode": "egress", "allow": []string{"npm", "GET api.github.com/repos"}},
		"secrets": []any{map[string]any{"name": "API_KEY", "hosts": []string{"api.example.com"}}}, "secret_values": map[string]string{"API_KEY": "k-0123"},
	},
	"ExecRequest":        map[string]any{"args": []string{"python3", "-c", "print(input())"}, "stdin": "hello\n", "timeout": "30s"},
	"Command":            map[string]any{"args": []string{"cat"}, "open_stdin": true},
	"Code":               map[string]any{"language": "python", "code": "print(6*7)"},
	"ExtendRequest":      map[string]any{"ttl": "2h"},
	"SignalRequest":      map[string]any{"signal": "TERM"},
	"StopRequest":        map[string]any{"grace": "10s"},
	"KeySpec":            map[string]any{"name": "ci", "role": "project", "projects": []string{"web"}, "ttl": "30d"},
	"WorkspaceSpec":      map[string]any{"name": "app", "source": "https://github.com/golang/example.git"},
	"OpenSessionRequest": map[string]any{"scope": map[string]any{"kind": "conversation", "id": "c-1"}, "sandbox": map[string]any{"image": "python:3.12"}},
}
