// Package settings has the defaults and checks of the settings of the store postgres, for programs that do not link it.
package settings

import (
	"errors"
	"net/url"
	"time"
)

// DefaultLease is the default time for which a killed program still counts as running, and MinLease its minimum.
const (
	DefaultLease = 30 * time.Second
	MinLease     = 2 * time.Second
)

// CheckURL returns an error if text cannot be the URL of a database. The error has no password. The store checks the
// rest.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return errors.New("not a URL of the form postgres://user@host:port/database") // without text, which may have a password
	}
	return nil
}

// HasPassword reports whether a URL has a password.
func HasPassword(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return true // it may have one
	}
	_, has := u.User.Password()
	return has || u.Query().Has("password")
}
