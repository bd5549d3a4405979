// Package openapi describes the API of package api: it generates an OpenAPI 3.1
// document from the routes and their Go types, and a page to read it. It is a separate
// package because servers of a single sandbox don't need it, and must start fast.
//
//	handler, err := api.NewHandler(p, api.Options{Docs: openapi.Handler(version)})
package openapi

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

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
		OpenAPI:  "3.1.0",
		Info:     &huma.Info{Title: "Atoll", Version: version, Description: intro},
		Servers:  []*huma.Server{{URL: "/", Description: "The server that serves this document"}},
		Security: []map[string][]string{{"token": {}}},
		Components: &huma.Components{
			Schemas:         b.schemas,
			Responses:       map[string]*huma.Response{"Error": {Description: "An error", Content: b.mediaTypes(api.ErrorContent())}},
			SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}},
		},
	}
	for _, route := range api.Routes() {
		if route.Alias {
			continue
		}
		if !hasTag(doc, route.Tag) {
			doc.Tags = append(doc.Tags, &huma.Tag{Name: route.Tag})
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
	switch {
	case name == "IDReply":
		return "IdReply"
	case name == "Message" && strings.HasSuffix(t.PkgPath(), "/wire"): // and not a conversation's
		return "StreamMessage"
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

type builder struct{ schemas huma.Registry }

func (b builder) newOperation(r api.Route) *huma.Operation {
	op := &huma.Operation{
		Method: r.Method, Path: strings.ReplaceAll(r.Path, "...}", "}"), OperationID: r.Name,
		Tags: []string{r.Tag}, Summary: r.Summary, Description: r.Doc,
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
	ok := &huma.Response{Description: http.StatusText(status), Content: b.mediaTypes(r.Reply)}
	if r.Stream.Type != nil {
		ref := b.schemaOf(r.Stream.Type).Ref
		ok.Description += ". Text messages are " + strings.TrimPrefix(ref, schemaPrefix) + " objects."
	}
	op.Responses[strconv.Itoa(status)] = ok
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

// finishSchemas removes constraints that Go types imply.
func (b builder) finishSchemas() {
	for _, schema := range b.schemas.Map() {
		schema.AdditionalProperties = nil // a newer server may send more fields
	}
}

// Handler serves /openapi.json and /docs. The first request generates the document.
func Handler(version string) http.Handler {
	h := &handler{version: version}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, r *http.Request) {
		h.serveDocument(w, "application/json", func() []byte { return h.json })
	})
	mux.HandleFunc("GET /docs", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		h.serveDocument(w, "text/html; charset=utf-8", func() []byte { return h.html })
	})
	return mux
}

type handler struct {
	version string

	once       sync.Once
	json, html []byte
	err        error
}

func (h *handler) serveDocument(w http.ResponseWriter, media string, body func() []byte) {
	if h.once.Do(h.makeDocument); h.err != nil {
		http.Error(w, h.err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(body())))
	_, _ = w.Write(body()) // the client may have gone
}

func (h *handler) makeDocument() {
	doc := Document(h.version)
	if h.json, h.err = doc.MarshalJSON(); h.err != nil {
		return
	}
	h.html, h.err = renderPage(doc)
}

//go:embed page.html
var page string

// An operation is one line of the page.
type operation struct {
	*huma.Operation
	Body   string // schema of the request
	Reply  string // schema of the success
	Status string
}

// renderPage returns the page, which needs no script.
func renderPage(doc *huma.OpenAPI) ([]byte, error) {
	t, err := template.New("page").Funcs(template.FuncMap{"fields": schemaFields, "type": typeName}).Parse(page)
	if err != nil {
		return nil, err
	}
	type section struct {
		Name       string
		Operations []operation
	}
	var sections []section
	for _, tag := range doc.Tags {
		s := section{Name: tag.Name}
		for _, path := range sortedKeys(doc.Paths) {
			item := doc.Paths[path]
			for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
				if op != nil && op.Tags[0] == tag.Name {
					s.Operations = append(s.Operations, describeOperation(op))
				}
			}
		}
		sections = append(sections, s)
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{"Doc": doc, "Sections": sections, "Schemas": doc.Components.Schemas.Map()})
	return out.Bytes(), err
}

func describeOperation(op *huma.Operation) operation {
	o := operation{Operation: op}
	if op.RequestBody != nil {
		o.Body = contentName(op.RequestBody.Content)
	}
	for status, resp := range op.Responses {
		if resp.Ref == "" { // not an error
			o.Status, o.Reply = status, contentName(resp.Content)
		}
	}
	return o
}

func contentName(content map[string]*huma.MediaType) string {
	for media, c := range content {
		if name := strings.TrimPrefix(c.Schema.Ref, schemaPrefix); name != "" {
			return name + " (" + media + ")"
		}
		return media
	}
	return "nothing"
}

// A field is one property of a schema.
type field struct {
	Name, Type string
	Required   bool
}

func schemaFields(s *huma.Schema) []field {
	var list []field
	for _, name := range sortedKeys(s.Properties) {
		list = append(list, field{name, typeName(s.Properties[name]), slices.Contains(s.Required, name)})
	}
	return list
}

func typeName(s *huma.Schema) string {
	switch {
	case s.Ref != "":
		return strings.TrimPrefix(s.Ref, schemaPrefix)
	case s.Items != nil:
		return "list of " + typeName(s.Items)
	case s.Format != "" && s.Type == huma.TypeString:
		return s.Format
	case s.ContentEncoding != "":
		return s.ContentEncoding
	}
	return s.Type
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
