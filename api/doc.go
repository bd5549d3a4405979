// Package api is a provider over HTTP: the Handler serves any atoll.Provider,
// the Client is one that stands for a Handler elsewhere.
package api
