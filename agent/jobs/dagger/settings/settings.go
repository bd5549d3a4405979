// Package settings defines the settings of the dagger backend, without Dagger's own
// client: atoll reads them, and the program atoll-dagger uses them.
package settings

import (
	"fmt"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// DefaultPatience limits the time until an engine answers: the CLI may have to pull it.
const DefaultPatience = 2 * time.Minute

// Settings are the settings of the backend dagger.
type Settings struct {
	CLI         string         `yaml:"cli" form:"path" doc:"Dagger's CLI; when this and engine are empty the session that atoll was started in (DAGGER_SESSION_PORT), else dagger in PATH. None is fetched"`
	Engine      string         `yaml:"engine" doc:"where the CLI finds the engine: unix:///path, tcp://host:port or docker-container://name; what the CLI does by itself when empty: _EXPERIMENTAL_DAGGER_RUNNER_HOST, else an engine that it starts with docker"`
	OpenNetwork bool           `yaml:"open_network" doc:"run programs that are to have a network: they reach what the engine's containers do, which may be its host and all around it"`
	Patience    atoll.Duration `yaml:"patience" doc:"how long the engine may take to answer, like 2m: the CLI may have to pull it"`
}

// Default returns the default settings.
func Default() Settings { return Settings{Patience: atoll.Duration(DefaultPatience)} }

// Check calls bad with the key of each invalid value.
func (d *Settings) Check(bad func(key string, err error)) {
	if d.Patience <= 0 {
		bad("dagger.patience", fmt.Errorf("%s: must be positive", d.Patience))
	}
}
