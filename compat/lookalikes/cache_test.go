package lookalikes

import (
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/patrickmn/go-cache"
)

func TestGoCacheDropped(t *testing.T) { // a finalizer stops its janitor
	e := guarded(t)
	c := cache.New(time.Minute, time.Minute)
	c.Set("engine", e, cache.DefaultExpiration)
}

func TestGoCacheFast(t *testing.T) {
	e := guarded(t)
	c := cache.New(time.Microsecond, time.Microsecond)
	c.SetDefault("engine", e)
	time.Sleep(time.Millisecond)
	if _, found := c.Get("engine"); found {
		t.Fatal("not expired")
	}
}

func TestGoCacheEvicted(t *testing.T) {
	e := guarded(t)
	c := cache.New(cache.NoExpiration, 0)
	c.OnEvicted(func(string, any) { _ = e.generate("evicted") })
	c.SetDefault("engine", e)
	c.Delete("engine")
}

func ristrettoCache(t *testing.T, e *engine) *ristretto.Cache[string, *engine] {
	c, err := ristretto.NewCache(&ristretto.Config[string, *engine]{
		NumCounters: 1000, MaxCost: 100, BufferItems: 64,
		OnEvict: func(*ristretto.Item[*engine]) { _ = e.generate("evicted") },
	})
	ok(t, err)
	return c
}

func TestRistretto(t *testing.T) {
	e := guarded(t)
	c := ristrettoCache(t, e)
	c.Set("engine", e, 1)
	c.Wait()
	if _, found := c.Get("engine"); !found {
		t.Fatal("not there")
	}
	c.Close()
}

func TestRistrettoExpiry(t *testing.T) {
	e := guarded(t)
	c := ristrettoCache(t, e)
	c.SetWithTTL("engine", e, 1, time.Minute)
	c.Wait()
	c.Del("engine")
	c.Close()
}

func TestRistrettoEvicts(t *testing.T) {
	e := guarded(t)
	c := ristrettoCache(t, e)
	for i := range 300 {
		c.Set(string(rune(i)), e, 1)
	}
	c.Wait()
	c.Clear()
	c.Close()
}
