package api

import (
	"net/http"
	"net/url"
	"reflect"
	"slices"
)

// A Route is one operation of the API: what the handler serves and what
// package openapi describes.
type Route struct {
	Method  string // "" means any
	Path    string // in the syntax of http.ServeMux
	Name    string // unique, in camel case
	Tag     string // the resource
	Summary string // one line
	Doc     string // more, in Markdown; may be empty
	Public  bool   // needs no token
	Admin   bool   // is not for those who are bound to projects
	Params  []Param
	Body    Content // of the request
	Status  int     // of success; 0 means 200
	Reply   Content // of success
	Stream  Content // the text messages of a WebSocket

	foreign bool // the query and the body are for somebody else to understand
	serve   func(h *Handler, w http.ResponseWriter, r *http.Request) error
}

// A Param is a query parameter of a Route. Those of the path need no word.
type Param struct {
	Name, Type string // Type is JSON Schema's
	Doc        string
	Required   bool
	Many       bool // may be given more than once
}

// A Content is what travels in a body.
type Content struct {
	Media string       // "" means there is none
	Type  reflect.Type // of JSON, and of the data of server-sent events
	Doc   string
}

// ErrorContent is the body of every answer that is not a success.
func ErrorContent() Content { return jsonOf[wireError]() }

// The media that bodies have.
const (
	mediaJSON  = "application/json"
	mediaBytes = "application/octet-stream"
	mediaTar   = "application/x-tar"
	mediaSSE   = "text/event-stream"
)

func jsonOf[T any]() Content   { return Content{Media: mediaJSON, Type: reflect.TypeFor[T]()} }
func eventsOf[T any]() Content { return Content{Media: mediaSSE, Type: reflect.TypeFor[T]()} }

// pattern is the route in the syntax of http.ServeMux.
func (r Route) pattern() string {
	if r.Method == "" {
		return r.Path
	}
	return r.Method + " " + r.Path
}

// check refuses what the route does not take.
func (r Route) check(req *http.Request) error {
	if r.foreign {
		return nil
	}
	values, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return invalid("the query %q: %w", req.URL.RawQuery, err)
	}
	for name, given := range values {
		i := slices.IndexFunc(r.Params, func(p Param) bool { return p.Name == name })
		if i < 0 {
			return invalid("unknown parameter %q", name)
		}
		if len(given) > 1 && !r.Params[i].Many {
			return invalid("parameter %s: is given %d times", name, len(given))
		}
	}
	for _, p := range r.Params {
		if p.Required && values.Get(p.Name) == "" {
			return invalid("parameter %s: is missing", p.Name)
		}
	}
	if r.Body.Media == "" && req.ContentLength != 0 {
		return invalid("there is a body, and this takes none")
	}
	return nil
}

// Routes lists what every Handler serves.
func Routes() []Route {
	return slices.Concat(
		serverRoutes(), sandboxRoutes(), execRoutes(), codeRoutes(), processRoutes(), terminalRoutes(), fileRoutes(), portRoutes(), storeRoutes(), ledgerRoutes(), workspaceRoutes(), sessionRoutes(), poolRoutes(), toolRoutes(), conversationRoutes(), keyRoutes(), auditRoutes(),
	)
}
