package lookalikes

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"
)

// String makes an engine a fmt.Stringer: loggers hold it until they have formatted it.
func (e *engine) String() string { return "an engine" }

func TestZapLogger(t *testing.T) {
	e := guarded(t)
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zap.DebugLevel)
	l := zap.New(core, zap.AddCaller()).With(zap.Stringer("engine", e))
	l.Info("loaded", zap.Any("engine", e))
	ok(t, l.Sync())
}

func TestZapInATest(t *testing.T) {
	e := guarded(t)
	zaptest.NewLogger(t).Info("loaded", zap.Stringer("engine", e))
}

func TestZapObserver(t *testing.T) {
	e := guarded(t)
	core, logs := observer.New(zap.InfoLevel)
	zap.New(core).Info("loaded", zap.Any("engine", e))
	if logs.Len() != 1 {
		t.Fatal(logs.Len())
	}
}

func TestZapSampled(t *testing.T) {
	e := guarded(t)
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.AddSync(io.Discard), zap.DebugLevel)
	l := zap.New(zapcore.NewSamplerWithOptions(core, time.Second, 1, 10)).Sugar()
	for range 100 {
		l.Infow("step", "engine", e)
	}
}

func TestZapBuffered(t *testing.T) {
	e := guarded(t)
	w := &zapcore.BufferedWriteSyncer{WS: zapcore.AddSync(new(bytes.Buffer))}
	zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), w, zap.InfoLevel)).Info("loaded", zap.Any("engine", e))
	ok(t, w.Stop())
}

func TestZapGlobalReplacedAndRestored(t *testing.T) {
	e := guarded(t)
	if *parallel {
		t.Skip("it changes what the process has once")
	}
	defer zap.ReplaceGlobals(zap.NewNop().With(zap.Stringer("engine", e)))()
	zap.L().Info("loaded")
}

func TestSlog(t *testing.T) {
	e := guarded(t)
	slog.New(slog.NewJSONHandler(io.Discard, nil)).With("engine", e).WithGroup("g").Info("loaded", "engine", e)
}

func spans(t *testing.T, e *engine, opts ...sdktrace.TracerProviderOption) {
	p := sdktrace.NewTracerProvider(opts...)
	ctx, span := p.Tracer("engine").Start(context.WithValue(context.Background(), e, e), e.generate("span"))
	_, child := p.Tracer("engine").Start(ctx, "child")
	child.SetAttributes(attribute.Stringer("engine", e))
	child.End()
	span.End()
	ok(t, p.Shutdown(context.Background()))
}

func TestOtelSyncer(t *testing.T) {
	spans(t, guarded(t), sdktrace.WithSyncer(tracetest.NewInMemoryExporter()))
}

func TestOtelBatcher(t *testing.T) {
	spans(t, guarded(t), sdktrace.WithBatcher(tracetest.NewInMemoryExporter()))
}

func TestOtelSampledAway(t *testing.T) {
	spans(t, guarded(t), sdktrace.WithSampler(sdktrace.NeverSample()), sdktrace.WithBatcher(tracetest.NewNoopExporter()))
}

func TestOtelSpanNeverEnded(t *testing.T) {
	e := guarded(t)
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tracetest.NewSpanRecorder()))
	_, span := p.Tracer("engine").Start(context.WithValue(t.Context(), e, e), "span")
	span.AddEvent(e.generate("event"))
	ok(t, p.Shutdown(t.Context()))
}

func TestOtelGauge(t *testing.T) {
	e := guarded(t)
	r := sdkmetric.NewManualReader()
	p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(r))
	_, err := p.Meter("engine").Int64ObservableGauge("calls", metric.WithInt64Callback(
		func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(e.calls))
			return nil
		}))
	ok(t, err)
	ok(t, r.Collect(t.Context(), new(metricdata.ResourceMetrics)))
	ok(t, p.Shutdown(t.Context()))
}

func TestOtelPeriodicReader(t *testing.T) {
	e := guarded(t)
	var n int
	p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter{e, &n})))
	c, err := p.Meter("engine").Int64Counter("calls")
	ok(t, err)
	c.Add(t.Context(), 1)
	ok(t, p.Shutdown(context.Background()))
}

type exporter struct {
	e *engine
	n *int
}

func (exporter) Temporality(sdkmetric.InstrumentKind) metricdata.Temporality {
	return metricdata.CumulativeTemporality
}

func (exporter) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}
func (x exporter) Export(context.Context, *metricdata.ResourceMetrics) error { *x.n++; return nil }
func (exporter) ForceFlush(context.Context) error                            { return nil }
func (exporter) Shutdown(context.Context) error                              { return nil }

func TestPrometheusRegistry(t *testing.T) {
	e := guarded(t)
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "calls"}, func() float64 { return float64(e.calls) }))
	_, err := r.Gather()
	ok(t, err)
}

func TestPrometheusUnregistered(t *testing.T) {
	e := guarded(t)
	name := "calls_" + t.Name()
	g := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name}, func() float64 { return float64(e.calls) })
	prometheus.MustRegister(g)
	_, err := prometheus.DefaultGatherer.Gather()
	ok(t, err)
	if !prometheus.Unregister(g) {
		t.Fatal("not registered")
	}
}

func TestPrometheusHandler(t *testing.T) {
	e := guarded(t)
	r := prometheus.NewRegistry()
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "latency"}, []string{"engine"})
	r.MustRegister(h)
	h.WithLabelValues(e.generate("e")).Observe(1)
	s := httptest.NewServer(promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	t.Cleanup(s.Close)
	get(t, s.Client(), s.URL)
}

func TestPrometheusTimer(t *testing.T) {
	e := guarded(t)
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "latency"})
	timer := prometheus.NewTimer(prometheus.ObserverFunc(func(float64) { e.calls++ }))
	h.Observe(timer.ObserveDuration().Seconds())
}
