// Command atoll-provider-test runs the conformance suite against a plugin's provider. atoll
// provider test starts it, with a Suite on stdin and flags of go test as arguments.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/plugin"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func main() {
	var suite plugin.Suite
	if err := json.NewDecoder(os.Stdin).Decode(&suite); err != nil || suite.Name == "" {
		fmt.Fprintln(os.Stderr, "atoll-provider-test is a part of atoll: run atoll provider test NAME")
		os.Exit(2)
	}
	run := func(t *testing.T) { runSuite(t, &suite) }
	testing.Main(regexp.MatchString, []testing.InternalTest{{Name: suite.Name, F: run}}, nil, nil) // exits
}

// runSuite runs the suite. Each provider that it opens is a program with a state directory of
// its own.
func runSuite(t *testing.T, suite *plugin.Suite) {
	var opts []providertest.Option
	if suite.Slow > 0 {
		opts = append(opts, providertest.Slow(suite.Slow))
	}
	if suite.Image != "" {
		opts = append(opts, providertest.Image(suite.Image))
	}
	if len(suite.Groups) > 0 {
		opts = append(opts, providertest.Only(suite.Groups...))
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		p, err := plugin.Open(t.Context(), plugin.Options{
			Name: suite.Name, Path: suite.Program, Settings: suite.Settings, Guest: suite.Guest, StateDir: t.TempDir(),
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, opts...)
}
