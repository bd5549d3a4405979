package api

import (
	"context"

	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A Client is a client.Client.
type Client = client.Client

// ClientOptions are client.Options.
type ClientOptions = client.Options

// NewClient is client.New.
func NewClient(ctx context.Context, opts ClientOptions) (*Client, error) {
	return client.New(ctx, opts)
}

// SplitURLs is client.SplitURLs.
func SplitURLs(text string) []string { return client.SplitURLs(text) }
