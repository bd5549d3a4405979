// Package plugin runs a part of Atoll, such as a provider that few need, as a program of its
// own. The programs of Atoll that are made this way are atoll-kubernetes, atoll-modal and
// atoll-dagger; anybody can add others.
//
// # The protocol
//
// Atoll finds the program atoll-NAME beside its own or in PATH, and starts it with the
// argument "plugin". It writes one line of JSON, a [Start], to the program's stdin and keeps
// stdin open. The program listens on the Unix socket that the line names, writes one line of
// JSON, a [Reply], to its stdout, and serves HTTP on the socket. A provider serves the routes
// of /openapi.json below /v1 that it needs, or the few of a backend; docs/provider.md has
// both. The program's stderr goes into Atoll's log. When stdin ends, the program removes the
// socket and its directory, and ends: so it ends, too, when Atoll is killed. Sandboxes of
// providers with the cap survives live on.
package plugin

import (
	"encoding/json"

	"github.com/seed46cd37a8/atoll"
)

// Protocol is the version of the protocol that this package speaks.
const Protocol = 1

// Argument is the first argument of a program that is started as a plugin.
const Argument = "plugin"

// A Start tells a program what to do. It is the line on its stdin.
type Start struct {
	Protocol int             `json:"protocol"`
	Socket   string          `json:"socket"`              // path of the Unix socket to listen on, in a directory that only its user can enter
	StateDir string          `json:"state_dir,omitempty"` // a directory for what the program has to remember
	Settings json.RawMessage `json:"settings,omitempty"`  // the plugin's table in the configuration file, as an object
	Probing  bool            `json:"probing,omitempty"`   // it is only asked whether it works: it should change nothing
	Guest    string          `json:"guest,omitempty"`     // path of the program that the provider puts into sandboxes; empty means its own
	Debug    bool            `json:"debug,omitempty"`     // Atoll's log takes records of level Debug
	// Resources are the default resources of sandboxes, as far as the configuration has them.
	Resources atoll.Resources `json:"resources,omitzero"`
	Place     bool            `json:"place,omitempty"` // the reply should have a Place
}

// A Reply is the answer of a program: that it listens, or why it does not.
type Reply struct {
	Protocol int             `json:"protocol"`
	Place    string          `json:"place,omitempty"`   // names where the sandboxes are, if that is not this machine
	Backend  bool            `json:"backend,omitempty"` // the program serves the routes of a backend only; Atoll does the rest
	Error    json.RawMessage `json:"error,omitempty"`   // as in answers of the HTTP API: {"kind": "invalid", "message": "..."}
}
