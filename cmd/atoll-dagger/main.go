// Command atoll-dagger runs the programs of agents on a Dagger engine. atoll starts it.
package main

import (
	"os"

	"github.com/seed46cd37a8/atoll/agent/jobs/dagger"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

func main() { os.Exit(plugin.Serve("dagger", dagger.Open)) }
