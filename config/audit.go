package config

import (
	"fmt"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Audit configures the audit log of a server.
type Audit struct {
	Keep atoll.Duration `yaml:"keep" doc:"how long a server retains its audit log, like 2160h; it is in the store, see store.url; 0 turns it off"`
	File string         `yaml:"file" form:"path" doc:"file to which each event is also written as a line of JSON; /dev/stderr for the server's log"`
}

func defaultAudit() Audit { return Audit{Keep: atoll.Duration(90 * 24 * time.Hour)} }

// checkValues calls bad with the key of each invalid value.
func (a Audit) checkValues(bad func(key string, err error)) {
	if a.Keep < 0 {
		bad("audit.keep", fmt.Errorf("%s: must be positive, or 0 for not at all", a.Keep))
	}
}
