package config

import (
	"errors"
	"fmt"

	"github.com/seed46cd37a8/atoll/internal/suggest"
)

// Nearest is what suggest.Closest is.
func Nearest(name string, known []string) string { return suggest.Closest(name, known) }

// instead says which of known was meant, or how to see all of them.
func instead(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return "the nearest known one is " + near
	}
	return "atoll config --docs lists the known ones"
}

// An errorList collects all that is wrong, so that it can be put right at once.
type errorList []error

func (l *errorList) add(err error) {
	if err != nil {
		*l = append(*l, err)
	}
}

func (l *errorList) addf(format string, args ...any) { l.add(fmt.Errorf(format, args...)) }

func (l errorList) join() error { return errors.Join(l...) }
