package plugin

import "encoding/json"

// A Suite tells the program atoll-provider-test which plugin to test, on its stdin.
type Suite struct {
	Name     string          `json:"name"`
	Program  string          `json:"program,omitempty"` // path; empty means program.Find(Name)
	Settings json.RawMessage `json:"settings,omitempty"`
	Guest    string          `json:"guest,omitempty"`
	Image    string          `json:"image,omitempty"`  // of the sandboxes; empty means the provider's default
	Groups   []string        `json:"groups,omitempty"` // of promises; empty means all
	Slow     float64         `json:"slow,omitempty"`   // by which deadlines are multiplied; 0 means the suite's own
}
