package tools

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll/agent/jobs"
)

// maxRefused is the maximum number of refusals in a note.
const maxRefused = 5

// refusalNote returns what the network refused while a command ran that failed; "" if nothing.
func refusalNote(r *jobs.Ran) string {
	if r.NoNetwork && hasNetworkError(r.Stderr.String()+r.Stdout.String()) {
		return "The sandbox has no network: no host can be reached, and no name resolved."
	}
	var names []string
	more := max(0, len(r.Refused)-maxRefused)
	for _, one := range r.Refused[more:] { // the latest
		names = append(names, one.String())
	}
	if len(names) == 0 {
		return ""
	}
	note := "The network refused " + strings.Join(names, "; ")
	if more > 0 {
		note += fmt.Sprintf("; and %d others", more)
	}
	note += ". Trying again does not help."
	if r.Allow != "" && len(r.Refused) <= maxRefused {
		note += " If you need it, ask your user to run: " + r.Allow
	}
	return note
}

// networkErrors are the messages of C libraries, Node.js, Go and pip, in lower case, for a name that does
// not resolve and for a network that is not there.
var networkErrors = []string{
	"name resolution", "name or service not known", "could not resolve", "eai_again", "enotfound", "enetunreach",
	"network is unreachable", "no such host", "bad address", "network unreachable", "unable to resolve",
}

// hasNetworkError reports whether output of a command complains about the network.
func hasNetworkError(output string) bool {
	output = strings.ToLower(output)
	return slices.ContainsFunc(networkErrors, func(s string) bool { return strings.Contains(output, s) })
}
