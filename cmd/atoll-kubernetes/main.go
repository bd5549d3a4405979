// Command atoll-kubernetes is the provider kubernetes: pods of a Kubernetes cluster. atoll starts it.
package main

import (
	"os"

	"github.com/seed46cd37a8/atoll/provider/kubernetes"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

func main() { os.Exit(plugin.ServeProvider("kubernetes", kubernetes.Open)) }
