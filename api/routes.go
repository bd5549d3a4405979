package api

import (
	"net/http"
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
	Params  []Param
	Body    Content // of the request
	Status  int     // of success; 0 means 200
	Reply   Content // of success
	Stream  Content // the text messages of a WebSocket

	serve func(h *Handler, w http.ResponseWriter, r *http.Request) error
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

// Routes lists what every Handler serves.
func Routes() []Route {
	return slices.Concat(
		serverRoutes(), sandboxRoutes(), execRoutes(), processRoutes(), fileRoutes(), portRoutes(), storeRoutes(),
	)
}
