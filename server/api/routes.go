package api

import (
	"net/http"
	"net/url"
	"reflect"
	"slices"

	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// A Route is one operation of the API. The handler serves it and package openapi describes it.
type Route struct {
	Method  string // "" means any method
	Path    string // in the syntax of http.ServeMux
	Name    string // unique, in camel case
	Tag     string // the kind of resource
	Summary string // one line
	Doc     string // more, in Markdown; may be empty
	Public  bool   // needs no token
	Admin   bool   // denied to accounts that are bound to projects
	Alias   bool   // another path of a route, which its description leaves out
	Params  []Param
	Body    Content // body of the request
	Status  int     // status of success; 0 means 200
	Reply   Content // body of success
	Stream  Content // the text messages of a WebSocket

	passThrough bool // do not check the query and the body
	serve       func(h *Handler, w http.ResponseWriter, r *http.Request) error
}

// A Param is a query parameter of a Route. Path parameters are not declared.
type Param struct {
	Name, Type string // Type is a type of JSON Schema
	Doc        string
	Required   bool
	Many       bool // may be given more than once
}

// A Content describes a body or the text messages of a WebSocket.
type Content struct {
	Media string       // "" means no body
	Type  reflect.Type // Go type of the JSON, or of the data of server-sent events
	Doc   string
}

// ErrorContent describes the body of each unsuccessful response.
func ErrorContent() Content { return jsonOf[wire.Error]() }

func jsonOf[T any]() Content   { return Content{Media: wire.MediaJSON, Type: reflect.TypeFor[T]()} }
func eventsOf[T any]() Content { return Content{Media: wire.MediaSSE, Type: reflect.TypeFor[T]()} }

// muxPattern returns the pattern of the route for http.ServeMux.
func (r Route) muxPattern() string {
	if r.Method == "" {
		return r.Path
	}
	return r.Method + " " + r.Path
}

// checkRequest returns ErrInvalid for a request with a parameter or body that the route does not
// declare, or without a required parameter.
func (r Route) checkRequest(req *http.Request) error {
	if r.passThrough {
		return nil
	}
	values, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return invalidError("the query %q: %w", req.URL.RawQuery, err)
	}
	for name, given := range values {
		i := slices.IndexFunc(r.Params, func(p Param) bool { return p.Name == name })
		if i < 0 {
			return invalidError("unknown parameter %q", name)
		}
		if len(given) > 1 && !r.Params[i].Many {
			return invalidError("parameter %s: given %d times", name, len(given))
		}
	}
	for _, p := range r.Params {
		if p.Required && values.Get(p.Name) == "" {
			return invalidError("parameter %s: missing", p.Name)
		}
	}
	if r.Body.Media == "" && req.ContentLength != 0 {
		return invalidError("unexpected body: this operation takes none")
	}
	return nil
}

// Routes lists the routes that each Handler serves.
func Routes() []Route {
	return slices.Concat(
		serverRoutes(), sandboxRoutes(),
		execRoutes(), codeRoutes(), processRoutes(), processEventRoutes(), terminalRoutes(), fileRoutes(), portRoutes(),
		storeRoutes(), registryRoutes(), workspaceRoutes(), sessionRoutes(), poolRoutes(),
		toolRoutes(), conversationRoutes(), keyRoutes(), auditRoutes(),
	)
}
