package config

import (
	"slices"
)

// CandidateProviders returns the preferred default provider of the operating system goos, followed by its
// substitutes.
func CandidateProviders(goos string) (names []string) {
	var substitutes []string
	for _, e := range Providers() {
		switch {
		case !e.On(goos).OK:
		case slices.Contains(e.preferredOn, goos):
			names = append(names, e.Name)
		case e.substitute:
			substitutes = append(substitutes, e.Name)
		}
	}
	return append(names, substitutes...)
}
