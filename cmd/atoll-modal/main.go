// Command atoll-modal is the provider modal: sandboxes of Modal. atoll starts it.
package main

import (
	"os"

	"github.com/seed46cd37a8/atoll/provider/modal"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

func main() { os.Exit(plugin.ServeProvider("modal", modal.Open)) }
