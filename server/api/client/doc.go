// Package client is an atoll.Provider that calls a server with package api.
//
//	c, err := client.New(ctx, client.Options{URL: "unix:///run/user/1000/atoll.sock"})
//	sb, err := c.Create(ctx, &atoll.Spec{})
//
// A [Client] retries calls, and resumes streams, watches and reads of files at other servers, as
// long as [Options].Patience allows. See package api for the operations and the wire.
package client
