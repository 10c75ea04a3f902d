/* The thread pool: one for the process, shared by all models, so that threads never outnumber cores.
 *
 * Between jobs the workers spin for a moment, since the next token is near, and then sleep. The caller is thread
 * 0. A forked child starts without workers and makes its own when it needs them.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "native.h"

#define MOST_THREADS 256
#define SPINS_BEFORE_YIELD 4000
#define SPINS_BEFORE_SLEEP 20000

static pthread_mutex_t one_job_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sleeping = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int threads = 1, started = 0;
static int sleepers;           /* workers that wait on `wake` */
static unsigned generation;    /* of jobs: a worker runs when it sees a new one */
static int busy;               /* workers that have not finished the job */
static unsigned arrived, phase; /* of the barrier */
static gl_job *job;
static void *argument;

static inline void rest(int spins) {
    if (spins > SPINS_BEFORE_YIELD) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
}

void gl_barrier(int count) {
    unsigned now = __atomic_load_n(&phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL) == (unsigned)count) {
        __atomic_store_n(&arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&phase, now + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&phase, __ATOMIC_ACQUIRE) == now; spins++) rest(spins);
}

static void *work(void *index) {
    unsigned seen = 0;
    for (;;) {
        int spins = 0;
        while (__atomic_load_n(&generation, __ATOMIC_ACQUIRE) == seen) {
            if (++spins < SPINS_BEFORE_SLEEP) {
                rest(0);
                continue;
            }
            pthread_mutex_lock(&sleeping);
            sleepers++;
            while (__atomic_load_n(&generation, __ATOMIC_ACQUIRE) == seen) pthread_cond_wait(&wake, &sleeping);
            sleepers--;
            pthread_mutex_unlock(&sleeping);
        }
        seen++;
        job(argument, (int)(intptr_t)index, threads);
        __atomic_sub_fetch(&busy, 1, __ATOMIC_ACQ_REL);
    }
    return NULL;
}

/* Only the forking thread lives on in a child: no workers, no locks held by anybody. */
static void after_fork_in_child(void) {
    pthread_mutex_init(&one_job_at_a_time, NULL);
    pthread_mutex_init(&sleeping, NULL);
    pthread_cond_init(&wake, NULL);
    started = sleepers = busy = 0;
    arrived = phase = generation = 0;
}

static void before_fork(void) { pthread_mutex_lock(&one_job_at_a_time); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&one_job_at_a_time); }

static void start_workers(void) {
    static int registered;
    if (!registered) registered = 1, pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    generation = 0;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (started = 1; started < threads; started++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, work, (void *)(intptr_t)started)) break;
    }
    threads = started; /* as many as the system gave us */
    pthread_attr_destroy(&attributes);
}

/* Before the first job only: the size of the pool is the process's, not a model's. Returns the size in force. */
int gl_set_threads(int wanted) {
    pthread_mutex_lock(&one_job_at_a_time);
    if (!started) threads = wanted < 1 ? 1 : wanted > MOST_THREADS ? MOST_THREADS : wanted;
    int count = threads;
    pthread_mutex_unlock(&one_job_at_a_time);
    return count;
}

void gl_parallel(gl_job *wanted, void *data) {
    pthread_mutex_lock(&one_job_at_a_time);
    if (!started) start_workers();
    job = wanted;
    argument = data;
    __atomic_store_n(&busy, threads - 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
    if (threads > 1) {
        pthread_mutex_lock(&sleeping);
        if (sleepers) pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&sleeping);
    }
    wanted(data, 0, threads);
    for (int spins = 0; __atomic_load_n(&busy, __ATOMIC_ACQUIRE); spins++) rest(spins);
    pthread_mutex_unlock(&one_job_at_a_time);
}
