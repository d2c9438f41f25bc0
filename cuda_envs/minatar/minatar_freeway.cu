// MinAtar's Freeway. One agent an env: one thread plays all of it.
#include "minatar.cuh"

enum Channel { CHICKEN, CAR, SPEED_1 };  // and four slower speeds

constexpr int NUM_CARS = 8;  // one a row, from row 1 on
constexpr int CHICKEN_X = 4;
constexpr int MOVE_TIME = 3;  // steps that a move of the chicken takes
typedef unsigned long long Cars;  // a byte each

__device__ __forceinline__ int byte_of(Cars cars, int i)
{
    return (signed char)(cars >> 8 * i);
}

__device__ __forceinline__ Cars with_byte(Cars cars, int i, int byte)
{
    return (cars & ~(255ull << 8 * i)) | (Cars)(byte & 255) << 8 * i;
}

__device__ __forceinline__ int around(int x)
{
    return x < 0 ? LAST : x > LAST ? 0 : x;
}

// Steps a cell of all cars, 1 to 5, and which way: more than 0 is right.
__device__ __forceinline__ Cars random_speeds(Random& random)
{
    Cars speeds = 0;
    for (int half = 0; half < 2; ++half) {
        unsigned draw = random.below(10000);  // four cars of ten cases each
        for (int i = 0; i < NUM_CARS / 2; ++i) {
            const int speed = 1 + draw % 5;
            speeds = with_byte(speeds, half * 4 + i, draw / 5 % 2 ? speed : -speed);
            draw /= 10;
        }
    }
    return speeds;
}

__device__ __forceinline__ Cars timers_of(Cars speeds)
{
    Cars timers = 0;
    for (int i = 0; i < NUM_CARS; ++i) timers = with_byte(timers, i, abs(byte_of(speeds, i)));
    return timers;
}

__device__ __forceinline__ Picture picture_of(int chicken_y, Cars xs, Cars speeds)
{
    Picture picture;
    picture.set(chicken_y, CHICKEN_X, CHICKEN);
    for (int i = 0; i < NUM_CARS; ++i) {
        const int x = byte_of(xs, i), speed = byte_of(speeds, i);
        picture.set(i + 1, x, CAR);
        picture.set(i + 1, around(beside(x, speed < 0)), SPEED_1 + abs(speed) - 1);
    }
    return picture;
}

// Moves the chicken, then the cars, which throw it back to where it began.
//   action       [env, agent]  number in ACTIONS                                 read
//   last_action  [env]         what was done                                     read, written
//   chicken_y    [env]         row, 9 to begin with, 0 to get to                 read, written
//   move_timer   [env]         steps until the chicken can move                  read, written
//   car_x        [env, 8]      columns of the cars of rows 1 to 8                read, written
//   car_timer    [env, 8]      steps until they move                             read, written
//   car_speed    [env, 8]      steps a cell, and which way: 1 to 5 right, or -1 to -5  read, written
//   time_step    [env]         steps since the episode began                     read, written
//   observation  [env, agent, row, column, channel]                              written
//   reward       [env, agent]  1 for a crossing                                  written
//   terminated   [env]         never                                             written
//   truncated    [env]         time is up                                        written
extern "C" __global__ void minatar_freeway_step(
    const unsigned int* seed, const long long* env_step, const int* action, signed char* last_action,
    signed char* chicken_y, signed char* move_timer, signed char* car_x, signed char* car_timer,
    signed char* car_speed, int* time_step, bool* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;
    Random random(seed, env, 0, env_step[env]);
    const int played = played_action(env, action, last_action, random);
    Cars xs = reinterpret_cast<const Cars*>(car_x)[env];
    Cars timers = reinterpret_cast<const Cars*>(car_timer)[env];
    Cars speeds = reinterpret_cast<const Cars*>(car_speed)[env];
    int y = chicken_y[env], until_move = move_timer[env], paid = 0;

    if (until_move == 0 && (played == UP || played == DOWN)) {
        until_move = MOVE_TIME;
        y = played == UP ? y - 1 : y < LAST ? y + 1 : LAST;
    }
    if (y == 0) {
        paid = 1;
        speeds = random_speeds(random);
        timers = timers_of(speeds);
        y = LAST;
    }
    for (int i = 0; i < NUM_CARS; ++i) {
        int x = byte_of(xs, i);
        const int speed = byte_of(speeds, i), timer = byte_of(timers, i);
        bool meets = x == CHICKEN_X;  // where it is, or where it goes
        if (timer == 0) {
            x = around(beside(x, speed > 0));
            xs = with_byte(xs, i, x);
            meets |= x == CHICKEN_X;
        }
        timers = with_byte(timers, i, timer == 0 ? abs(speed) : timer - 1);
        if (meets && y == i + 1) y = LAST;
    }
    chicken_y[env] = y;
    move_timer[env] = until_move > 0 ? until_move - 1 : 0;
    reinterpret_cast<Cars*>(car_x)[env] = xs;
    reinterpret_cast<Cars*>(car_timer)[env] = timers;
    reinterpret_cast<Cars*>(car_speed)[env] = speeds;
    end_step(env, paid, false, time_step, reward, terminated, truncated);
    write_picture(env, picture_of(y, xs, speeds), observation);
}

// Starts an ended env anew: all cars at the left edge, at speeds of their own.
extern "C" __global__ void minatar_freeway_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step,
    signed char* last_action, signed char* chicken_y, signed char* move_timer, signed char* car_x,
    signed char* car_timer, signed char* car_speed, int* time_step, bool* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;
    Random random(seed, env, 0, env_step[env], STREAM_RESET);
    const Cars speeds = random_speeds(random);
    last_action[env] = NOTHING;
    chicken_y[env] = LAST;
    move_timer[env] = MOVE_TIME;
    reinterpret_cast<Cars*>(car_x)[env] = 0;
    reinterpret_cast<Cars*>(car_timer)[env] = timers_of(speeds);
    reinterpret_cast<Cars*>(car_speed)[env] = speeds;
    time_step[env] = 0;
    write_picture_alone(env, picture_of(LAST, 0, speeds), observation);
}
