package gateway

import (
	"crypto/tls"
	"net"
	"sync"
)

// A batchConn is a connection below TLS, which reads and writes records of 16 KB. While there is much to read, it reads more at once, and
// it writes all records of one write together. It holds no buffer while the connection is idle.
type batchConn struct {
	net.Conn

	reading sync.Mutex
	full    bool    // the last read filled its buffer: there may be more
	ahead   *[]byte // of batchBuffers; nil if there is nothing ahead
	unread  []byte  // of ahead

	writing  sync.Mutex
	batching bool
	batch    *[]byte // of batchBuffers, with what is to be written; nil for nothing
}

// batchSize is the size in bytes of the largest read and write.
const batchSize = 128 << 10

var batchBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, batchSize)
	return &b
}}

func (c *batchConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.ahead == nil {
		if !c.full || len(p) >= batchSize {
			n, err := c.Conn.Read(p)
			c.full = n == len(p)
			return n, err
		}
		c.ahead = batchBuffers.Get().(*[]byte)
		n, err := c.Conn.Read((*c.ahead)[:batchSize])
		c.unread = (*c.ahead)[:n]
		if c.full = n == batchSize; n == 0 {
			c.dropAhead()
			return 0, err
		}
	}
	n := copy(p, c.unread)
	if c.unread = c.unread[n:]; len(c.unread) == 0 {
		c.dropAhead()
	}
	return n, nil
}

// dropAhead returns the buffer of what was read ahead. The caller holds reading.
func (c *batchConn) dropAhead() {
	batchBuffers.Put(c.ahead)
	c.ahead, c.unread = nil, nil
}

func (c *batchConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.batching {
		return c.Conn.Write(p)
	}
	if c.batch == nil {
		c.batch = batchBuffers.Get().(*[]byte)
	}
	if len(*c.batch)+len(p) > batchSize {
		if err := c.flushBatch(); err != nil {
			return 0, err
		}
	}
	if len(p) > batchSize {
		return c.Conn.Write(p)
	}
	*c.batch = append(*c.batch, p...)
	return len(p), nil
}

// flushBatch writes the batch. The caller holds writing.
func (c *batchConn) flushBatch() error {
	if len(*c.batch) == 0 {
		return nil
	}
	_, err := c.Conn.Write(*c.batch)
	*c.batch = (*c.batch)[:0]
	return err
}

// endBatch writes the batch, and what comes later at once.
func (c *batchConn) endBatch() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.batching = false
	if c.batch == nil {
		return nil
	}
	err := c.flushBatch()
	batchBuffers.Put(c.batch)
	c.batch = nil
	return err
}

// beginBatch makes the connection collect what is written, until endBatch.
func (c *batchConn) beginBatch() {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.batching = true
}

// maxRecord is the size in bytes of the longest record of TLS.
const maxRecord = 16 << 10

// A secureConn is a connection of TLS to the client, which can be reset.
type secureConn struct {
	*tls.Conn
	below *batchConn
	batch sync.Mutex // held during a write of several records
}

func (c *secureConn) Write(p []byte) (int, error) {
	if len(p) <= maxRecord {
		return c.Conn.Write(p)
	}
	c.batch.Lock()
	defer c.batch.Unlock()
	c.below.beginBatch()
	n, err := c.Conn.Write(p)
	if problem := c.below.endBatch(); err == nil {
		err = problem
	}
	return n, err
}

// Reset ends the connection with a RST, if it can.
func (c *secureConn) Reset() {
	if r, ok := c.below.Conn.(interface{ Reset() }); ok {
		r.Reset()
	}
}
