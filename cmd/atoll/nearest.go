package main

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// nearestTo returns advice that names the known word nearest to a misspelt one, or "" if none is near.
func nearestTo(word string, known []string) string {
	if near := config.Nearest(word, known); near != "" && near != word && len(word) > 1 { // any word is near a single letter
		return "; the nearest is " + near
	}
	return ""
}

// notThere returns the error for a thing that does not exist, with advice at its end.
func notThere(advice, format string, args ...any) error {
	return atoll.Errorf("", "", atoll.ErrNotExist, format+"%s", append(args, advice)...)
}
