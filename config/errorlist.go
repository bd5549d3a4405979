package config

import (
	"errors"
	"fmt"

	"github.com/seed46cd37a8/atoll/internal/suggest"
)

// Nearest returns the most similar name in known, or "" if none is similar. See suggest.Closest.
func Nearest(name string, known []string) string { return suggest.Closest(name, known) }

// suggestKey returns advice for an unknown name: the most similar known one, or how to list all.
func suggestKey(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return "the nearest known one is " + near
	}
	return "atoll config --docs lists the known ones"
}

// An errorList collects errors, so that a user can fix all at once.
type errorList []error

// addError adds err unless it is nil.
func (l *errorList) addError(err error) {
	if err != nil {
		*l = append(*l, err)
	}
}

func (l *errorList) addErrorf(format string, args ...any) { l.addError(fmt.Errorf(format, args...)) }

// joinErrors returns all errors as one, or nil if there are none.
func (l errorList) joinErrors() error { return errors.Join(l...) }
